# SPDX-License-Identifier: Apache-2.0
"""LightOnOCR, `transformers.models.lighton_ocr`: Mistral 3's images, and Qwen 3."""

from dataclasses import replace

from qeff_zoo.multimodal.image_column import ImageColumn
from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXTRAL_VISION
from .mistral3 import RECIPE as MISTRAL3
from .qwen3 import RECIPE as QWEN3

RECIPE = replace(
    MISTRAL3,
    model_type="lighton_ocr",
    architectures=("LightOnOcrForConditionalGeneration",),
    special="Mistral 3's images in one piece, and Qwen 3.",
    images=ImageColumn(),
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN3.tiny[0].config, "model_type": "qwen3"},
                "vision_config": PIXTRAL_VISION,
                "image_token_id": 200,
                "spatial_merge_size": 2,
            },
            image_processor=MISTRAL3.tiny[0].image_processor,
        ),
    ),
)
