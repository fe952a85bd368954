# SPDX-License-Identifier: Apache-2.0
"""MiniMax-Text-01 and MiniMax-M1, `transformers.models.minimax`: lightning attention, full attention and experts."""

from dataclasses import replace
from typing import Any

from qeff_zoo.recipe import Tiny, Transform, experts, rms_norm

from .llama import RECIPE as LLAMA

_LINEAR, _FULL = "linear_attention", "full_attention"


def _linear(config: Any) -> int:
    return int(config.layer_types.count(_LINEAR))


RECIPE = replace(
    LLAMA,
    model_type="minimax",
    architectures=("MiniMaxForCausalLM",),
    special="Seven layers of lightning attention to a full one; experts; scaled residuals of normalized inputs.",
    transforms=(
        rms_norm(lambda config: 2 * config.num_hidden_layers + 1 + _linear(config)),
        experts(),
        Transform(name="lightning_attention", version=2, count=_linear),
    ),
    tiny=(
        Tiny(
            config=dict(LLAMA.tiny[0].config)
            | {"num_hidden_layers": 5, "layer_types": [_LINEAR, _LINEAR, _FULL, _LINEAR, _FULL]}
            | {"num_local_experts": 5, "num_experts_per_tok": 2, "rms_norm_eps": 1e-2}
            | {"full_attn_alpha_factor": 1.3, "full_attn_beta_factor": 0.7, "mlp_alpha_factor": 1.4}
            | {"linear_attn_alpha_factor": 0.8, "linear_attn_beta_factor": 1.2, "block_size": 4}
            | {"mlp_beta_factor": 0.6, "sliding_window": 7}
        ),
    ),
)
