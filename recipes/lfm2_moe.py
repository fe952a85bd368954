# SPDX-License-Identifier: Apache-2.0
"""LFM2-8B-A1B and LFM2-24B-A2B, `transformers.models.lfm2_moe`: LFM2 with experts above its first layers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .lfm2 import RECIPE as LFM2

_TINY = {key: value for key, value in LFM2.tiny[0].config.items() if key != "block_multiple_of"}

RECIPE = replace(
    LFM2,
    model_type="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    special="LFM2 with experts above its first layers, selected by biased sigmoid scores, weighted without the bias.",
    transforms=(
        *LFM2.transforms,
        experts(),
    ),
    tiny=(
        Tiny(
            config={
                **_TINY,
                "num_hidden_layers": 8,
                "layer_types": ["conv", "full_attention", "conv", "full_attention"] * 2,
                "num_dense_layers": 4,
                "moe_intermediate_size": 48,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "routed_scaling_factor": 1.7,
            }
        ),
    ),
)
