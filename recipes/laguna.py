# SPDX-License-Identifier: Apache-2.0
"""Laguna XS, `transformers.models.laguna`.

Unusual: layers differ in their number of query heads; a softplus gate on each head's attention; experts chosen by a
biased sigmoid of soft-capped scores, scaled, beside a shared one; sliding and full layers with a RoPE of their own.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .mellum import RECIPE as MELLUM

_ROPE = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}

RECIPE = replace(
    MELLUM,
    model_type="laguna",
    architectures=("LagunaForCausalLM",),
    special="Number of query heads by layer; gated attention; experts by biased sigmoid scores; RoPE by kind of layer.",
    tiny=(
        Tiny(
            config={
                **MELLUM.tiny[0].config,
                "shared_expert_intermediate_size": 40,
                "rope_parameters": {
                    "sliding_attention": _ROPE,
                    "full_attention": {**_ROPE, "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
                },
                "num_attention_heads_per_layer": [8, 4] * 2,
                "moe_router_logit_softcapping": 2.0,
                "moe_routed_scaling_factor": 2.5,
            }
        ),
    ),
)
