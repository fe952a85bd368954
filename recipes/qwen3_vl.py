# SPDX-License-Identifier: Apache-2.0
"""Qwen3-VL, `transformers.models.qwen3_vl`: features of several vision layers are added in the first text layers."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny, rms_norm

from ._tiny_parts import QWEN_TOKENS, QWEN_VISION
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

STAMP = ("<{:.1f} seconds><|vision_start|>", "<|vision_end|>")

RECIPE = replace(
    QWEN2_5_VL,
    model_type="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    special="Features of several vision layers are added in the first text layers; learned positions, interpolated.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    embeds=True,  # Qwen3-VL-Embedding
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
                **QWEN_TOKENS,
                "text_config": {**QWEN2_5_VL.tiny[0].config["text_config"], "head_dim": 24},
                "vision_config": {
                    **QWEN_VISION,
                    "depth": 4,
                    "out_hidden_size": 64,
                    "intermediate_size": 48,
                    "num_position_embeddings": 16,
                    "deepstack_visual_indexes": [0, 1, 2],
                },
            },
        ),
    ),
)
