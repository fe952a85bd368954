# SPDX-License-Identifier: Apache-2.0
"""Qwen3-30B-A3B, 235B-A22B, Qwen3-Coder and others, `transformers.models.qwen3_moe`: Qwen3 with experts for MLPs."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .qwen2_moe import RECIPE as QWEN2_MOE
from .qwen3 import RECIPE as QWEN3

_TINY = {
    **QWEN3.tiny[0].config,
    "moe_intermediate_size": 48,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
# Unlike in Qwen3, a window covers all layers.
del _TINY["max_window_layers"]

RECIPE = replace(
    QWEN3,
    model_type="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"),
    special="Experts without a shared one, routing weights renormalized; an RMS norm per head on queries and keys.",
    transforms=(*QWEN3.transforms, QWEN2_MOE.transforms[-1]),
    tiny=(
        Tiny(config={**_TINY, "mlp_only_layers": [0, 2]}),
        Tiny(config={**_TINY, "use_sliding_window": False, "norm_topk_prob": False}, name="full"),
    ),
)
