# SPDX-License-Identifier: Apache-2.0
"""Facts of architectures that exports are known to drop: name -> tiny config, and the change that drops it there."""

from collections.abc import Mapping
from typing import Any

from qeff_zoo.registry import find_recipe

_LLAMA_ROPE = find_recipe("llama").tiny[0].config["rope_parameters"]
FACTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma2: soft-cap on scores": ("gemma2-base", {"attn_logit_softcapping": None}),
    "gemma2: soft-cap on logits": ("gemma2-base", {"final_logit_softcapping": None}),
    "gemma2: window": ("gemma2-base", {"sliding_window": 4096}),
    "gemma2: alternating layers": ("gemma2-base", {"layer_types": ["full_attention"] * 4}),
    "gemma2: query scale": ("gemma2-base", {"query_pre_attn_scalar": 24}),
    "gemma3: local RoPE base": (
        "gemma3_text-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            }
        },
    ),
    "gemma3: scaled RoPE of full layers": (
        "gemma3_text-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        },
    ),
    "gemma3: window": ("gemma3_text-base", {"sliding_window": 4096}),
    "gemma3: order of the layers": (
        "gemma3_text-base",
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
    "mistral: window": ("mistral-base", {"sliding_window": None}),
    "mixtral: window": ("mixtral-base", {"sliding_window": None}),
    "mixtral: experts per token": ("mixtral-base", {"num_experts_per_tok": 1}),
    "qwen2: window": ("qwen2-base", {"use_sliding_window": False, "layer_types": None}),
    "qwen2: where windows begin": (
        "qwen2-base",
        {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
    ),
    "qwen3: window": ("qwen3-base", {"use_sliding_window": False, "layer_types": None}),
    "falcon: ALiBi": ("falcon-alibi", {"alibi": False}),
    "falcon: RoPE": ("falcon-base", {"alibi": True}),
    "gpt2: scale by layer": (
        "gpt2-inverse_layer_idx",
        {"scale_attn_by_inverse_layer_idx": False},
    ),
    "llama: RoPE scaling": (
        "llama-base",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    ),
    "llama: RoPE base": (
        "llama-base",
        {"rope_parameters": {**_LLAMA_ROPE, "rope_theta": 2000.0}},
    ),
}
