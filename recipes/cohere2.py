# SPDX-License-Identifier: Apache-2.0
"""Command R7B and Command A, `transformers.models.cohere2`: Cohere with windows, and RoPE only inside them."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .cohere import RECIPE as COHERE

RECIPE = replace(
    COHERE,
    model_type="cohere2",
    architectures=("Cohere2ForCausalLM",),
    special="Parallel attention and MLP; sliding layers with RoPE, full layers without positions; scaled logits.",
    tiny=(
        Tiny(
            config={
                **COHERE.tiny[0].config,
                # head_dim is hidden // heads, always.
                "num_attention_heads": 6,
                "sliding_window": 7,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
        ),
    ),
)
