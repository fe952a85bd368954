# SPDX-License-Identifier: Apache-2.0
"""Beam, `transformers.models.beam`.

Unusual: full layers have no positions, and scale their queries by the token's position; attention is gated; norms
before and after each block; residuals weigh more in deeper layers; experts within the best groups.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm, window_cache

from .llama import RECIPE as LLAMA

_SLIDING = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
_ROPE = {"rope_parameters": {"sliding_attention": _SLIDING, "full_attention": None}}
_LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_hidden_layers": 6}
_MLP_TYPES = {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4, "moe_intermediate_size": 48}
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
_OTHER_FIELDS = {"sliding_window": 7, "rms_norm_eps": 1e-2, "routed_scaling_factor": 1.7}
_SOFTCAPPING = {"final_logit_softcapping": 5.0}

RECIPE = replace(
    LLAMA,
    model_type="beam",
    architectures=("BeamForCausalLM",),
    special="Sliding layers with RoPE, full ones without; gated attention; residuals scaled by depth; grouped experts.",
    transforms=(
        rms_norm(lambda config: 6 * config.num_hidden_layers + 1),
        experts(),
        window_cache(),
    ),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                **_ROPE,
                **_LAYER_TYPES,
                **_MLP_TYPES,
                **_MOE,
                **_OTHER_FIELDS,
                **_SOFTCAPPING,
            }
        ),
    ),
)
