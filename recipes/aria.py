# SPDX-License-Identifier: Apache-2.0
"""Aria, `transformers.models.aria`: Idefics 3's vision encoder, whose rows learned queries sum up, and experts."""

from dataclasses import replace

from qeff_zoo.multimodal.families.aria import Aria
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IDEFICS3_VISION
from .aria_text import RECIPE as ARIA_TEXT
from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="aria",
    architectures=("AriaForConditionalGeneration",),
    special="Features of one size of image, summed up by learned queries, and read by experts.",
    images=Aria(),
    tiny=(
        Tiny(
            config={
                "text_config": {**ARIA_TEXT.tiny[0].config, "model_type": "aria_text"},
                "vision_config": {**IDEFICS3_VISION, "model_type": "idefics3_vision"},
                "image_token_index": 200,
                "projector_patch_to_query_dict": {"16": 8},
            }
        ),
    ),
)
