# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5, `transformers.models.qwen2`: Llama with biased projections, and windows in the upper layers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

# Qwen2's head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"} | {
    "tie_word_embeddings": True
}

RECIPE = replace(
    LLAMA,
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM", "Qwen2ForSequenceClassification", "Qwen2Model"),
    special="Query, key and value projections have biases; layers from max_window_layers on use a sliding window.",
    tiny=(
        Tiny(
            config={
                **_TINY,
                "use_sliding_window": True,
                "sliding_window": 7,
                "max_window_layers": 2,
            }
        ),
        Tiny(config={**_TINY, "use_sliding_window": False}, name="full"),
    ),
)
