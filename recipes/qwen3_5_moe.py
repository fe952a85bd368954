# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5 with experts, `transformers.models.qwen3_5_moe`."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import MULTIMODAL_ROPE
from .qwen3_5 import RECIPE as QWEN3_5
from .qwen3_5_moe_text import RECIPE as QWEN3_5_MOE_TEXT

RECIPE = replace(
    QWEN3_5,
    model_type="qwen3_5_moe",
    architectures=("Qwen3_5MoeForConditionalGeneration",),
    special="Qwen3.5 with images and experts.",
    transforms=QWEN3_5_MOE_TEXT.transforms,
    tiny=(
        Tiny(
            config={
                **QWEN3_5.tiny[0].config,
                "text_config": {
                    **QWEN3_5_MOE_TEXT.tiny[0].config,
                    "rope_parameters": MULTIMODAL_ROPE,
                },
            }
        ),
    ),
)
