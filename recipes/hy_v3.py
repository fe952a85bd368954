# SPDX-License-Identifier: Apache-2.0
"""Hunyuan 3, `transformers.models.hy_v3`.

Unusual: experts chosen by biased sigmoid scores, routing weights renormalized and scaled, beside shared ones; dense
layers in between; an RMS norm per head on queries and keys.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .llama import RECIPE as LLAMA
from .qwen3 import RECIPE as QWEN3

RECIPE = replace(
    QWEN3,
    model_type="hy_v3",
    architectures=("HYV3ForCausalLM",),
    special="Experts by biased sigmoid scores, scaled, beside shared ones; RMS norms per head on queries and keys.",
    transforms=(*QWEN3.transforms, experts()),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "moe_intermediate_size": 48,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "num_shared_experts": 2,
                "router_scaling_factor": 2.5,
                "mlp_layer_types": ["dense", "sparse"] * 2,
            }
        ),
    ),
)
