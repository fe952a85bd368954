# SPDX-License-Identifier: Apache-2.0
"""Qwen3-VL with experts, `transformers.models.qwen3_vl_moe`."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .qwen2_moe import RECIPE as QWEN2_MOE
from .qwen3_vl import RECIPE as QWEN3_VL

RECIPE = replace(
    QWEN3_VL,
    model_type="qwen3_vl_moe",
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    special="Qwen3-VL with experts, whose router looks at all of them before it chooses.",
    transforms=(*QWEN3_VL.transforms, QWEN2_MOE.transforms[-1]),
    embeds=False,
    tiny=(
        Tiny(
            config={
                **QWEN3_VL.tiny[0].config,
                "text_config": {
                    **QWEN3_VL.tiny[0].config["text_config"],
                    "num_experts": 4,
                    "num_experts_per_tok": 2,
                    "moe_intermediate_size": 24,
                },
            }
        ),
    ),
)
