# SPDX-License-Identifier: Apache-2.0
"""Solar Open 100B, `transformers.models.solar_open`.

Unusual: experts chosen by biased sigmoid scores within the best groups, routing weights renormalized and scaled,
beside shared experts in one MLP.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="solar_open",
    architectures=("SolarOpenForCausalLM",),
    special="Experts in groups by biased sigmoid scores, scaled, beside shared ones; partial RoPE if asked for.",
    transforms=(*LLAMA.transforms, experts()),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "moe_intermediate_size": 48,
                "n_routed_experts": 6,
                "n_shared_experts": 2,
                "n_group": 3,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "routed_scaling_factor": 2.5,
            }
        ),
    ),
)
