# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5, `transformers.models.qwen3_5`: Qwen3-VL's images, and layers of gated delta rules."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny

from ._tiny_parts import MULTIMODAL_ROPE, QWEN_TOKENS, QWEN_VISION
from .qwen3_5_text import RECIPE as QWEN3_5_TEXT
from .qwen3_vl import STAMP

RECIPE = replace(
    QWEN3_5_TEXT,
    model_type="qwen3_5",
    architectures=("Qwen3_5ForConditionalGeneration",),
    special="Qwen3-VL's images without deepstack, read by layers of gated delta rules and of attention.",
    images=PatchGrid(
        axes=3,
        types="mm_token_type_ids",
        video="video_token_id",
        video_processor="Qwen3VLVideoProcessor",
        stamp=STAMP,
    ),
    task="image-text-to-text",
    tiny=(
        Tiny(
            config={
                **QWEN_TOKENS,
                "text_config": {**QWEN3_5_TEXT.tiny[0].config, "rope_parameters": MULTIMODAL_ROPE},
                "vision_config": {
                    "depth": 4,
                    "out_hidden_size": 64,
                    "intermediate_size": 48,
                    **QWEN_VISION,
                    "num_position_embeddings": 16,
                },
            }
        ),
    ),
)
