# SPDX-License-Identifier: Apache-2.0
"""Llama 4 Scout and Maverick, text alone, `transformers.models.llama4`.

Unusual: layers with RoPE see only their chunk, layers without see all and scale queries by position; RoPE rotates
interleaved pairs; the one expert chosen gets its input scaled by a sigmoid, beside a shared expert.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .llama import RECIPE as LLAMA

_TINY = {
    **LLAMA.tiny[0].config,
    "intermediate_size_mlp": 80,
    "num_local_experts": 5,
    "num_experts_per_tok": 1,
    "moe_layers": [1, 3],
    "attention_chunk_size": 7,
    "no_rope_layers": [1, 0, 1, 0],
    "floor_scale": 4,
    "attn_scale": 0.7,
}

RECIPE = replace(
    LLAMA,
    model_type="llama4_text",
    architectures=("Llama4ForCausalLM",),
    special="Chunked layers with RoPE, full ones without; queries scaled by position; one expert beside a shared one.",
    transforms=(
        *LLAMA.transforms,
        Transform(name="llama4_experts", version=2, count=lambda config: len(config.moe_layers)),
        Transform(name="llama4_attention", count=lambda config: config.num_hidden_layers),
    ),
    tiny=(Tiny(config=_TINY), Tiny(config={**_TINY, "use_qk_norm": False}, name="without_norm")),
)
