# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5, `transformers.models.qwen3_5`: Qwen3-VL's pictures, and layers of gated delta rules."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny

from .qwen2_5_vl import TOKENS
from .qwen3_5_text import RECIPE as QWEN3_5_TEXT
from .qwen3_vl import SIZES, STAMP, VISION

_ROPE = {"rope_type": "default", "rope_theta": 1000.0}
ROPE = {**_ROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}

RECIPE = replace(
    QWEN3_5_TEXT,
    model_type="qwen3_5",
    architectures=("Qwen3_5ForConditionalGeneration",),
    special="Qwen3-VL's pictures without deepstack, read by layers of gated delta rules and of attention.",
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
                **TOKENS,
                "text_config": {**QWEN3_5_TEXT.tiny[0].config, "rope_parameters": ROPE},
                "vision_config": {**SIZES, **VISION, "num_position_embeddings": 16},
            }
        ),
    ),
)
