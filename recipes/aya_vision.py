# SPDX-License-Identifier: Apache-2.0
"""Aya Vision, `transformers.models.aya_vision`: SigLIP's tiles, numbered in the prompt, and Cohere 2."""

from dataclasses import replace

from qeff_zoo.multimodal.families.aya_vision import AyaVision
from qeff_zoo.recipe import Tiny

from ._tiny_parts import SIGLIP_VISION
from .cohere2 import RECIPE as COHERE2
from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="aya_vision",
    architectures=("AyaVisionForConditionalGeneration",),
    special="Tiles that are numbered in the prompt, and the whole image; four of their rows become one.",
    images=AyaVision(),
    tiny=(
        Tiny(
            config={
                "text_config": {**COHERE2.tiny[0].config, "model_type": "cohere2"},
                "vision_config": SIGLIP_VISION,
                "image_token_index": 200,
            },
            image_processor={
                "image_processor_type": "GotOcr2ImageProcessor",
                "size": {"height": 28, "width": 28},
                "crop_to_patches": True,
                "max_patches": 4,
            },
        ),
    ),
)
