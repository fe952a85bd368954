# SPDX-License-Identifier: Apache-2.0
"""Phi-3, Phi-3.5 and Phi-4 (mini and 14B), `transformers.models.phi3`.

Unusual: one fused query-key-value projection and one fused gate-up projection. Phi-4-mini turns a part of each head
and ties its head. Checkpoints with longrope (128k contexts) change their frequencies by length.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .mistral import RECIPE as MISTRAL

# Phi-3's head_dim is always hidden / heads.
_TINY = {key: value for key, value in MISTRAL.tiny[0].config.items() if key != "head_dim"} | {
    "rms_norm_eps": 1e-2,
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.75,
    },
}

RECIPE = replace(
    MISTRAL,
    model_type="phi3",
    architectures=("Phi3ForCausalLM",),
    special="Query, key and value in one projection, gate and up in another; optional window and partial RoPE.",
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | {"sliding_window": None, "tie_word_embeddings": True}, name="tied"),
    ),
)
