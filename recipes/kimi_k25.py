# SPDX-License-Identifier: Apache-2.0
"""Kimi K2.5 and K2.6, `transformers.models.kimi_k25`: MoonViT-3d's patches of any image, and DeepSeek-V3."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_lines import PatchLines
from qeff_zoo.recipe import Tiny

from .deepseek_v3 import RECIPE as DEEPSEEK_V3
from .llava import RECIPE as LLAVA

_VISION_CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
    "pos_emb_height": 5,
    "pos_emb_width": 5,
    "initializer_range": 0.2,
}

RECIPE = replace(
    LLAVA,
    model_type="kimi_k25",
    rev=2,
    architectures=("Kimi_K25ForConditionalGeneration",),
    special="Patches of images of any size, line by line; learned positions, interpolated by cubes; DeepSeek-V3.",
    images=PatchLines(taps="bicubic"),
    former_text_types={"kimi_k2": "deepseek_v3"},
    image_processor="Kimi_K25ImageProcessor",
    tiny=(
        Tiny(
            config={
                "text_config": {**DEEPSEEK_V3.tiny[0].config, "model_type": "deepseek_v3"},
                "vision_config": _VISION_CONFIG,
                "projection_hidden_size": 64,
                "image_token_id": 200,
                "video_token_id": 201,
            }
        ),
    ),
)
