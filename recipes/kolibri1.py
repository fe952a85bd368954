# SPDX-License-Identifier: Apache-2.0
"""Kolibri 1, `transformers.models.kolibri1`.

Unusual: norms before and after each block and per head on queries and keys; RoPE in sliding layers alone; experts
chosen by biased scores, with sigmoids as routing weights, beside a shared one.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="kolibri1",
    architectures=("Kolibri1ForCausalLM",),
    special="Sliding layers with RoPE, full layers without; experts by biased scores beside a shared one.",
    transforms=(
        rms_norm(lambda config: 6 * config.num_hidden_layers + 1),
        experts(),
    ),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "moe_intermediate_size": 48,
                "shared_expert_intermediate_size": 40,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "sliding_window": 7,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            }
        ),
    ),
)
