# SPDX-License-Identifier: Apache-2.0
"""Qwen3-VL, `transformers.models.qwen3_vl`: features of several vision layers are added in the first text layers."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny, rms_norm

from .qwen2_5_vl import RECIPE as QWEN2_5_VL
from .qwen2_5_vl import TEXT, TOKENS

VISION = {"hidden_size": 32, "num_heads": 2, "patch_size": 4, "initializer_range": 0.2}
_MORE = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1, 2]}
STAMP = ("<{:.1f} seconds><|vision_start|>", "<|vision_end|>")
SIZES = {"depth": 4, "out_hidden_size": 64, "intermediate_size": 48}

RECIPE = replace(
    QWEN2_5_VL,
    model_type="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    special="Features of several vision layers are added in the first text layers; learned positions, interpolated.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    images=PatchGrid(
        axes=3,
        types="mm_token_type_ids",
        deepstack="deepstack_visual_indexes",
        video="video_token_id",
        video_processor="Qwen3VLVideoProcessor",
        stamp=STAMP,
    ),
    tiny=(
        Tiny(
            config={
                **TOKENS,
                "text_config": {**TEXT, "head_dim": 24},
                "vision_config": {**VISION, **SIZES, **_MORE},
            },
        ),
    ),
)
