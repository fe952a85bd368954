# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX Japanese of ABEJA, `transformers.models.gpt_neox_japanese`: GPT-NeoX with a single bias of attention.

Unusual: only the last layer's attention has a bias, blocks follow one another, the head is tied.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .gpt_neox import RECIPE as GPT_NEOX

_TINY = {key: value for key, value in GPT_NEOX.tiny[0].config.items() if key != "intermediate_size"}

RECIPE = replace(
    GPT_NEOX,
    model_type="gpt_neox_japanese",
    architectures=("GPTNeoXJapaneseForCausalLM",),
    special="GPT-NeoX with sequential residuals, no biases except in the last layer's attention, and a tied head.",
    tiny=(Tiny(config={**_TINY, "intermediate_multiple_size": 2}),),
)
