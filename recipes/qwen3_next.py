# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next-80B-A3B and Qwen3-Coder-Next, `transformers.models.qwen3_next`.

Unusual: three layers of the gated delta rule to one of gated attention, in which a quarter of each head is rotated.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .qwen2_moe import RECIPE as QWEN2_MOE
from .qwen3_5_text import RECIPE as QWEN3_5

RECIPE = replace(
    QWEN3_5,
    model_type="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    special="Gated delta rule and gated attention in turn; many small experts and a gated shared one; partial RoPE.",
    transforms=(*QWEN3_5.transforms, QWEN2_MOE.transforms[-1]),
    tiny=(
        Tiny(
            config={
                **QWEN3_5.tiny[0].config,
                "moe_intermediate_size": 48,
                "shared_expert_intermediate_size": 40,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "mlp_only_layers": [1, 4],
            }
        ),
    ),
)
