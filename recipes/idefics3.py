# SPDX-License-Identifier: Apache-2.0
"""Idefics 3, `transformers.models.idefics3`: tiles that the prompt names by row and column, and the whole image."""

from dataclasses import replace

from qeff_zoo.multimodal.families.idefics3 import Idefics3
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IDEFICS3_VISION
from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="idefics3",
    architectures=("Idefics3ForConditionalGeneration",),
    special="Tiles that the prompt names by row and column, and the whole image; four of their rows become one.",
    images=Idefics3(),
    tiny=(
        Tiny(
            config={
                "text_config": LLAVA.tiny[0].config["text_config"],
                "vision_config": IDEFICS3_VISION,
                "image_token_id": 200,
                "scale_factor": 2,
            },
            image_processor={
                "image_processor_type": "Idefics3ImageProcessor",
                "size": {"longest_edge": 56},
                "max_image_size": {"longest_edge": 28},
            },
        ),
    ),
)
