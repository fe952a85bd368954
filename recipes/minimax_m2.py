# SPDX-License-Identifier: Apache-2.0
"""MiniMax M2, M2.1 and M2.5, `transformers.models.minimax_m2`.

Unusual: experts chosen by biased sigmoid scores, weighted by the unbiased ones, renormalized; queries and keys are
normalized over all heads together; RoPE over a part of each head.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA
from .olmoe import RECIPE as OLMOE

_ROPE = {**LLAMA.tiny[0].config["rope_parameters"], "partial_rotary_factor": 0.5}

RECIPE = replace(
    OLMOE,
    model_type="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    special="Experts by biased sigmoid scores; one RMS norm over all query heads, one over all keys; partial RoPE.",
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "rms_norm_eps": 1e-2,
                "num_local_experts": 5,
                "num_experts_per_tok": 2,
                "rope_parameters": _ROPE,
            }
        ),
    ),
)
