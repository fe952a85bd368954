# SPDX-License-Identifier: Apache-2.0
"""Phi-1, Phi-1.5 and Phi-2, `transformers.models.phi`.

Unusual: attention and MLP both read one layer norm and are added together, RoPE rotates only a part of each head, and
every projection has a bias, including the head.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

# Phi's head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"} | {
    "layer_norm_eps": 1e-2,
    "rope_parameters": {
        "rope_type": "linear",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "partial_rotary_factor": 0.5,
    },
}

RECIPE = replace(
    LLAMA,
    model_type="phi",
    architectures=("PhiForCausalLM", "PhiForSequenceClassification"),
    special="Attention and MLP in parallel from one layer norm; partial RoPE; biases throughout.",
    transforms=(),
    # The published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in LLAMA.shapes.items()},
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | {"qk_layernorm": True}, name="qk_layernorm")),
)
