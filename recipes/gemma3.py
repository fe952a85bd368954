# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 with images, `transformers.models.gemma3`: bidirectional attention among the tokens of an image."""

from dataclasses import replace

from qeff_zoo.multimodal.families.gemma3 import Gemma3
from qeff_zoo.recipe import Tiny

from ._tiny_parts import SIGLIP_VISION
from .gemma3_text import RECIPE as GEMMA3_TEXT
from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="gemma3",
    architectures=("Gemma3ForConditionalGeneration",),
    special="Bidirectional attention within an image, in sliding layers too; an image is in one prefill call.",
    images=Gemma3(),
    compile_flags=GEMMA3_TEXT.compile_flags,
    tiny=(
        Tiny(
            config={
                "text_config": {**GEMMA3_TEXT.tiny[0].config, "model_type": "gemma3_text"},
                "vision_config": SIGLIP_VISION,
                "image_token_index": 200,
                "boi_token_index": 201,
                "eoi_token_index": 202,
                "mm_tokens_per_image": 4,
            }
        ),
    ),
)
