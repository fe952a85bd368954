# SPDX-License-Identifier: Apache-2.0
"""Cohere 2 with experts, `transformers.models.cohere2_moe`.

Unusual: routing weights are computed after the selection, by softmax or sigmoid; shared experts are added or
averaged. The first, dense layers may have RoPE although their attention is full.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .cohere2 import RECIPE as COHERE2

_TINY = {
    **COHERE2.tiny[0].config,
    "head_dim": 24,
    "layer_types": ["full_attention"] * 2 + ["sliding_attention", "full_attention"] * 2,
    "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4,
    "num_hidden_layers": 6,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "prefix_dense_intermediate_size": 80,
}
_SIGMOID_ROUTING = {"expert_selection_fn": "sigmoid", "num_shared_experts": 2}

RECIPE = replace(
    COHERE2,
    model_type="cohere2_moe",
    architectures=("Cohere2MoeForCausalLM",),
    special="Cohere 2 with dense layers, then experts weighted by softmax or sigmoid; shared experts.",
    transforms=(experts(),),
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            config=_TINY | _SIGMOID_ROUTING | {"prefix_dense_sliding_window_pattern": 4},
            name="sigmoid",
        ),
    ),
)
