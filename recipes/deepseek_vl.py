# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-VL 1.3B, `transformers.models.deepseek_vl`: SigLIP, two matrices, and Llama."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llava import RECIPE as LLAVA
from .llava import TEXT, VISION

RECIPE = replace(
    LLAVA,
    model_type="deepseek_vl",
    architectures=("DeepseekVLForConditionalGeneration",),
    special="All features of SigLIP's last layer, through two matrices, in place of placeholder tokens.",
    tiny=(
        Tiny(
            config={
                "text_config": TEXT,
                "vision_config": {**VISION, "model_type": "siglip_vision_model"},
                "image_token_id": 200,
            }
        ),
    ),
)
