# SPDX-License-Identifier: Apache-2.0
"""Granite 4.0, `transformers.models.granitemoehybrid`: Mamba 2, a few attention layers, shared and routed experts."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .bamba import RECIPE as BAMBA

_MAMBA, _FULL = "linear_attention", "full_attention"
_TINY = {
    **{key: value for key, value in BAMBA.tiny[0].config.items() if key != "attn_layer_indices"},
    "layer_types": [_MAMBA, _FULL, _MAMBA, _MAMBA, _FULL],
    "shared_intermediate_size": 40,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.1,
    "logits_scaling": 2.0,
}


RECIPE = replace(
    BAMBA,
    model_type="granitemoehybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    special="Mamba 2 and attention without positions; a shared expert, in some models routed ones; four multipliers.",
    transforms=(
        *BAMBA.transforms,
        experts(lambda config: config.num_hidden_layers * bool(config.num_local_experts)),
    ),
    tiny=(
        Tiny(config=_TINY),
        Tiny(config={**_TINY, "position_embedding_type": "rope"}, name="rope"),
    ),
)
