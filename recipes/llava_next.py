# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT, `transformers.models.llava_next`: the whole image, and tiles of it in more detail."""

from dataclasses import replace

from qeff_zoo.multimodal.families.llava_next import LlavaNext
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IMAGE_GRIDS
from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="llava_next",
    architectures=("LlavaNextForConditionalGeneration",),
    special="The whole image and its tiles, whose lines each end with a learned row; padding is cut off.",
    images=LlavaNext(),
    tiny=(
        Tiny(
            config={**LLAVA.tiny[0].config, "image_grid_pinpoints": IMAGE_GRIDS},
            image_processor={
                "image_processor_type": "LlavaNextImageProcessor",
                "size": {"shortest_edge": 28},
                "crop_size": {"height": 28, "width": 28},
                "image_grid_pinpoints": IMAGE_GRIDS,
            },
        ),
    ),
)
