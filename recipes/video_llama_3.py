# SPDX-License-Identifier: Apache-2.0
"""VideoLLaMA 3, `transformers.models.video_llama_3`: patches of images and of frames, whose rows may repeat."""

from dataclasses import replace

from qeff_zoo.multimodal.families.video_llama_3 import VideoLlama3
from qeff_zoo.recipe import Tiny

from ._tiny_parts import PATCH_VISION
from .qwen2 import RECIPE as QWEN2
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

_VISION_CONFIG = {name: value for name, value in PATCH_VISION.items() if name != "image_size"}
_TOKENS = {"image_token_id": 200, "video_token_id": 201}

RECIPE = replace(
    QWEN2_5_VL,
    model_type="video_llama_3",
    architectures=("VideoLlama3ForConditionalGeneration",),
    special="Patches of images of any size, each a row of its own; RoPE over row and column in the encoder alone.",
    transforms=QWEN2.transforms,
    images=VideoLlama3(),
    tiny=(
        Tiny(
            config={**_TOKENS, "text_config": QWEN2.tiny[1].config, "vision_config": _VISION_CONFIG}
        ),
    ),
)
