# SPDX-License-Identifier: Apache-2.0
"""Bamba 9B, `transformers.models.bamba`: Mamba 2 layers and a few attention layers with half of each head rotated."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, layers_of, recurrence

from .llama import RECIPE as LLAMA

_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"}

RECIPE = replace(
    LLAMA,
    model_type="bamba",
    architectures=("BambaForCausalLM",),
    special="Mamba 2 layers and a few attention layers; RoPE rotates half of each head.",
    transforms=(
        *LLAMA.transforms,
        recurrence(layers_of("linear_attention")),
    ),
    tiny=(
        Tiny(
            config={
                **_TINY,
                "num_hidden_layers": 5,
                "attn_layer_indices": [1, 4],
                "mamba_n_heads": 8,
                "mamba_d_head": 16,
                "mamba_n_groups": 2,
                "mamba_d_state": 12,
                "mamba_d_conv": 3,
                "rms_norm_eps": 1e-2,
            }
        ),
    ),
)
