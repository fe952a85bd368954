# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-VL 1.3 B, `transformers.models.deepseek_vl`: SigLIP at one size, and Llama."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .gemma3 import SIGLIP
from .llava import RECIPE as LLAVA
from .llava import TEXT

RECIPE = replace(
    LLAVA,
    model_type="deepseek_vl",
    architectures=("DeepseekVLForConditionalGeneration",),
    special="Features of one size of picture, through two matrices.",
    tiny=(Tiny(config={"text_config": TEXT, "vision_config": SIGLIP, "image_token_id": 200}),),
)
