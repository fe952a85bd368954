# SPDX-License-Identifier: Apache-2.0
"""North Micro Vision, `transformers.models.cohere_compass`: Qwen3-VL's images, and Cohere's parallel layers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import QWEN_TOKENS
from .cohere_compass_text import RECIPE as COHERE_COMPASS_TEXT
from .qwen3_vl import RECIPE as QWEN3_VL

RECIPE = replace(
    QWEN3_VL,
    model_type="cohere_compass",
    architectures=("CohereCompassForConditionalGeneration",),
    special="Qwen3-VL's images, read by parallel attention and MLP; sliding layers with RoPE, full ones without.",
    transforms=(),
    embeds=False,
    tiny=(
        Tiny(
            config={
                **QWEN_TOKENS,
                "text_config": {
                    **COHERE_COMPASS_TEXT.tiny[0].config,
                    "model_type": "cohere_compass_text",
                },
                "vision_config": QWEN3_VL.tiny[0].config["vision_config"],
            }
        ),
    ),
)
