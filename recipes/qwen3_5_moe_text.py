# SPDX-License-Identifier: Apache-2.0
"""The text model of Qwen3.5 with experts, `transformers.models.qwen3_5_moe`: Qwen3-Next without dense layers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .qwen3_5_text import RECIPE as QWEN3_5
from .qwen3_next import RECIPE as QWEN3_NEXT

_TINY = QWEN3_NEXT.tiny[0].config

RECIPE = replace(
    QWEN3_5,
    model_type="qwen3_5_moe_text",
    architectures=("Qwen3_5MoeForCausalLM",),
    special="Gated delta rule and gated attention in turn; every MLP is a block of experts with a gated shared one.",
    transforms=(*QWEN3_5.transforms, experts()),
    tiny=(Tiny(config={key: _TINY[key] for key in _TINY if key != "mlp_only_layers"}),),
)
