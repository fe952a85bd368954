# SPDX-License-Identifier: Apache-2.0
"""MiniMax M3, `transformers.models.minimax_m3_vl`: patches of any image with RoPE over time, row and column."""

from dataclasses import replace

from qeff_zoo.multimodal.families.minimax_m3 import MiniMaxM3
from qeff_zoo.recipe import Tiny

from ._tiny_parts import PATCH_VISION
from .llava import RECIPE as LLAVA
from .minimax_m3_vl_text import RECIPE as MINIMAX_M3_VL_TEXT

RECIPE = replace(
    LLAVA,
    model_type="minimax_m3_vl",
    architectures=("MiniMaxM3SparseForConditionalGeneration",),
    special="Patches of images of any size; vision layers rotate by frame, row and column; block-sparse attention.",
    images=MiniMaxM3(
        before=("]<]start of image[>[",),
        after=("]<]end of image[>[",),
    ),
    image_processor="MiniMaxM3VLImageProcessor",
    tiny=(
        Tiny(
            config={
                "text_config": {
                    **MINIMAX_M3_VL_TEXT.tiny[0].config,
                    "model_type": "minimax_m3_vl_text",
                },
                "vision_config": {
                    **PATCH_VISION,
                    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
                },
                "projector_hidden_size": 48,
                "image_token_index": 200,
                "video_token_index": 201,
            }
        ),
    ),
)
