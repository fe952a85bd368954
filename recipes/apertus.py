# SPDX-License-Identifier: Apache-2.0
"""Apertus 8B and 70B, `transformers.models.apertus`.

Unusual: the MLP has no gate, and its activation, xIELU, has two learned parameters in every layer.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

# Apertus' head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"}

RECIPE = replace(
    LLAMA,
    model_type="apertus",
    architectures=("ApertusForCausalLM",),
    special="An MLP of two matrices with the learned activation xIELU; norms on queries and keys.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(Tiny(config={**_TINY, "rms_norm_eps": 1e-2}),),
)
