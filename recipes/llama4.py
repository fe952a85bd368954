# SPDX-License-Identifier: Apache-2.0
"""Llama 4 Scout and Maverick, `transformers.models.llama4`: tiles, and vision layers with RoPE by row and column."""

from dataclasses import replace

from qeff_zoo.multimodal.families.llama4 import Llama4
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IDEFICS3_VISION
from .llama4_text import RECIPE as LLAMA4_TEXT
from .llava import RECIPE as LLAVA

_VISION_CONFIG = {
    **IDEFICS3_VISION,
    "intermediate_size": 256,
    "vision_output_dim": 64,
    "projector_input_dim": 64,
    "projector_output_dim": 64,
}

RECIPE = replace(
    LLAVA,
    model_type="llama4",
    architectures=("Llama4ForConditionalGeneration",),
    special="Tiles that separators part, and the whole image; the vision encoder rotates by row and column.",
    images=Llama4(),
    tiny=(
        Tiny(
            config={
                "text_config": {**LLAMA4_TEXT.tiny[0].config, "model_type": "llama4_text"},
                "vision_config": _VISION_CONFIG,
                "image_token_index": 200,
                "boi_token_index": 201,
                "eoi_token_index": 202,
            }
        ),
    ),
)
