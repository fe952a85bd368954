# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-VL 1.3 B, `transformers.models.deepseek_vl`: SigLIP at one size, and Llama."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import SIGLIP_VISION
from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="deepseek_vl",
    architectures=("DeepseekVLForConditionalGeneration",),
    special="Features of one size of image, through two matrices.",
    tiny=(
        Tiny(
            config={
                "text_config": LLAVA.tiny[0].config["text_config"],
                "vision_config": SIGLIP_VISION,
                "image_token_id": 200,
            }
        ),
    ),
)
