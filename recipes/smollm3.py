# SPDX-License-Identifier: Apache-2.0
"""SmolLM3, `transformers.models.smollm3`: Llama with tied weights, and without RoPE in every fourth layer."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .qwen2 import RECIPE as QWEN2

_TINY = {**QWEN2.tiny[1].config, "no_rope_layers": [1, 0, 1, 0], "pad_token_id": 0}

RECIPE = replace(
    QWEN2,
    model_type="smollm3",
    architectures=("SmolLM3ForCausalLM", "SmolLM3ForSequenceClassification"),
    special="Some layers have no positional encoding; those may use a sliding window.",
    tiny=(
        Tiny(config=_TINY),
        Tiny(config={**_TINY, "use_sliding_window": True, "sliding_window": 7}, name="window"),
    ),
)
