# SPDX-License-Identifier: Apache-2.0
"""Ling 3.0, `transformers.models.bailing_hybrid`: Kimi Linear with rotated and gated latent attention."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .kimi_linear import RECIPE as KIMI_LINEAR
from .llama import RECIPE as LLAMA

_TINY = KIMI_LINEAR.tiny[0].config

RECIPE = replace(
    KIMI_LINEAR,
    model_type="bailing_hybrid",
    architectures=("BailingHybridForCausalLM",),
    special="A delta rule whose decay is a bounded vector per head; latent attention with RoPE and a gate per head.",
    tiny=(
        Tiny(
            config={
                **{key: _TINY[key] for key in _TINY if not key.startswith("linear_")},
                "head_dim": 8,
                "short_conv_kernel_size": 3,
                "kda_lower_bound": -3.0,
                "rope_parameters": LLAMA.tiny[0].config["rope_parameters"],
            }
        ),
    ),
)
