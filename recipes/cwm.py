# SPDX-License-Identifier: Apache-2.0
"""Code World Model of Meta, `transformers.models.cwm`: Llama 3 with three sliding layers to a full one."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="cwm",
    architectures=("CwmForCausalLM",),
    special="Llama with sliding and full layers, as layer_types says.",
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "rms_norm_eps": 1e-2,
                "sliding_window": 7,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
        ),
    ),
)
