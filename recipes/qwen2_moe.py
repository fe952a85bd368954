# SPDX-License-Identifier: Apache-2.0
"""Qwen1.5-MoE and Qwen2-57B-A14B, `transformers.models.qwen2_moe`.

Unusual: beside the routed experts a shared one, weighted by a gate of its own; routing weights are not renormalized.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .qwen2 import RECIPE as QWEN2

RECIPE = replace(
    QWEN2,
    model_type="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM", "Qwen2MoeForSequenceClassification"),
    special="Routed experts and a gated shared one; biased query, key and value; optional dense and sliding layers.",
    transforms=(*QWEN2.transforms, experts()),
    tiny=(
        Tiny(
            config={
                **QWEN2.tiny[0].config,
                "moe_intermediate_size": 48,
                "shared_expert_intermediate_size": 40,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "mlp_only_layers": [1, 3],
                "max_window_layers": 4,
                "tie_word_embeddings": False,
            }
        ),
    ),
)
