# SPDX-License-Identifier: Apache-2.0
"""LLaVA-OneVision, `transformers.models.llava_onevision`: LLaVA-NeXT with SigLIP, and fewer rows of large images."""

from dataclasses import replace

from qeff_zoo.multimodal.families.llava_onevision import LlavaOneVision
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IMAGE_GRIDS, SIGLIP_VISION
from .llava_next import RECIPE as LLAVA_NEXT
from .qwen2 import RECIPE as QWEN2

RECIPE = replace(
    LLAVA_NEXT,
    model_type="llava_onevision",
    architectures=("LlavaOnevisionForConditionalGeneration",),
    special="LLaVA-NeXT, whose rows are interpolated where an image has more tiles than `vision_aspect_ratio` says.",
    images=LlavaOneVision(
        video="video_token_id",
        video_processor="LlavaOnevisionVideoProcessor",
    ),
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN2.tiny[0].config, "model_type": "qwen2"},
                "vision_config": SIGLIP_VISION,
                "image_token_index": 200,
                "video_token_index": 201,
                "image_grid_pinpoints": IMAGE_GRIDS,
                "vision_aspect_ratio": "anyres_max_1",
            },
            image_processor={
                "image_processor_type": "LlavaOnevisionImageProcessor",
                "size": {"height": 28, "width": 28},
                "image_grid_pinpoints": IMAGE_GRIDS,
            },
        ),
    ),
)
