# SPDX-License-Identifier: Apache-2.0
"""Phi-3, Phi-3.5 and Phi-4 (mini and 14B), `transformers.models.phi3`.

Unusual: one fused projection of query, key and value, one of gate and up. Phi-4-mini rotates a part of each head and
ties its head to its embeddings. Long-context checkpoints have two sets of RoPE frequencies.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .mistral import RECIPE as MISTRAL

_ROPE = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.75}
# Phi-3's head_dim is always hidden / heads.
_TINY = {key: value for key, value in MISTRAL.tiny[0].config.items() if key != "head_dim"} | {
    "rms_norm_eps": 1e-2,
    "pad_token_id": 0,
    "rope_parameters": _ROPE,
}
# The prompt is longer than the original context.
_LONGROPE = {
    "tie_word_embeddings": True,
    "original_max_position_embeddings": 8,
    "rope_parameters": {
        **_ROPE,
        "rope_type": "longrope",
        "short_factor": [1.0] * 6,
        "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    },
}

RECIPE = replace(
    MISTRAL,
    model_type="phi3",
    architectures=("Phi3ForCausalLM", "Phi3ForSequenceClassification"),
    special="Fused query, key and value, and gate and up; optional window, partial RoPE; longrope by context.",
    fixed_kv_heads="its queries, keys and values are made by one matrix",
    variants={},
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | _LONGROPE, name="longrope")),
)
