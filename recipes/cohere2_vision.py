# SPDX-License-Identifier: Apache-2.0
"""Command A Vision, `transformers.models.cohere2_vision`: SigLIP's tiles, each ended by a token, and Cohere 2."""

from dataclasses import replace

from qeff_zoo.multimodal.families.cohere2_vision import Cohere2Vision
from qeff_zoo.recipe import Tiny

from ._tiny_parts import SIGLIP_VISION
from .cohere2 import RECIPE as COHERE2
from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="cohere2_vision",
    architectures=("Cohere2VisionForConditionalGeneration",),
    special="Tiles that each end with a token, and the whole image; four of their rows become one.",
    images=Cohere2Vision(),
    tiny=(
        Tiny(
            config={
                "text_config": {**COHERE2.tiny[0].config, "model_type": "cohere2"},
                "vision_config": SIGLIP_VISION,
                "image_token_id": 200,
                "alignment_intermediate_size": 64,
            },
        ),
    ),
)
