# SPDX-License-Identifier: Apache-2.0
"""Qwen2-VL, `transformers.models.qwen2_vl`: Qwen2.5-VL whose vision layers all attend to the whole image."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny

from ._tiny_parts import QWEN_TOKENS
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

RECIPE = replace(
    QWEN2_5_VL,
    model_type="qwen2_vl",
    architectures=("Qwen2VLForConditionalGeneration",),
    special="Patches of images of any size, packed into one sequence; RoPE over time, row and column.",
    images=PatchGrid(axes=3, types="mm_token_type_ids", video="video_token_id"),
    tiny=(
        Tiny(
            config={
                **QWEN_TOKENS,
                "text_config": QWEN2_5_VL.tiny[0].config["text_config"],
                "vision_config": {
                    "num_heads": 2,
                    "patch_size": 4,
                    "initializer_range": 0.2,
                    "depth": 2,
                    "embed_dim": 32,
                    "hidden_size": 64,
                },
            }
        ),
    ),
)
