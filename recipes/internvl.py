# SPDX-License-Identifier: Apache-2.0
"""InternVL 2.5 and 3, `transformers.models.internvl`: tiles of the nearest grid, and the whole image."""

from dataclasses import replace

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import Tiny

from ._tiny_parts import ENCODER_SIZES
from .llava import RECIPE as LLAVA
from .qwen2 import RECIPE as QWEN2

_IMAGE_PROCESSOR = {"size": {"height": 28, "width": 28}, "crop_to_patches": True, "max_patches": 4}

RECIPE = replace(
    LLAVA,
    model_type="internvl",
    architectures=("InternVLForConditionalGeneration",),
    special="Tiles of the nearest grid and the whole image; four of their rows become one.",
    images=Images(
        before=("<img>",),
        after=("</img>",),
        video="<video>",
        video_processor="InternVLVideoProcessor",
        stamp=("Frame{number}: ", "", "\n"),
    ),
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN2.tiny[0].config, "model_type": "qwen2"},
                "vision_config": {**ENCODER_SIZES, "image_size": [28, 28], "patch_size": [7, 7]},
                "image_token_id": 200,
                "image_seq_length": 4,
            },
            image_processor={"image_processor_type": "GotOcr2ImageProcessor", **_IMAGE_PROCESSOR},
        ),
    ),
)
