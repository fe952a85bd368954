# SPDX-License-Identifier: Apache-2.0
"""Ovis 2, `transformers.models.ovis2`: AIMv2's tiles become shares of a vocabulary of images, and Qwen 2.5 reads."""

from dataclasses import replace

from qeff_zoo.multimodal.families.ovis2 import Ovis2
from qeff_zoo.recipe import Tiny

from ._tiny_parts import ENCODER_SIZES
from .llava import RECIPE as LLAVA
from .qwen2 import RECIPE as QWEN2

_VISION_SIZES = {"image_size": 28, "patch_size": 7, "hidden_stride": 2, "vocab_size": 96}

RECIPE = replace(
    LLAVA,
    model_type="ovis2",
    architectures=("Ovis2ForConditionalGeneration",),
    special="The whole image and its tiles as shares of a vocabulary, which has the tokens around them, too.",
    images=Ovis2(),
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN2.tiny[0].config, "model_type": "qwen2"},
                "vision_config": {**ENCODER_SIZES, **_VISION_SIZES},
                "vocab_size": 257,
                "hidden_size": 64,
                "image_token_id": 200,
                "visual_indicator_token_ids": [201, 202, 203, 204, 205],
            },
            image_processor={
                "image_processor_type": "Ovis2ImageProcessor",
                "size": {"height": 28, "width": 28},
                "crop_to_patches": True,
                "max_patches": 4,
            },
        ),
    ),
)
