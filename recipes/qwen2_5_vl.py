# SPDX-License-Identifier: Apache-2.0
"""Qwen2.5-VL, `transformers.models.qwen2_5_vl`: patches of any image, most vision layers in windows, 3-axis RoPE."""

from qeff_zoo.multimodal.families.qwen_video import QwenVideo
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, rms_norm

from ._tiny_parts import QWEN_TOKENS, QWEN_VISION
from .qwen2 import RECIPE as QWEN2

_ROPE = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]}
_TEXT_CONFIG = {
    **QWEN2.tiny[1].config,
    "rope_parameters": _ROPE,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

RECIPE = Recipe(
    model_type="qwen2_5_vl",
    architectures=("Qwen2_5_VLForConditionalGeneration",),
    task="image-text-to-text",
    special="Patches of images of any size; windows in most vision layers; RoPE over time, row and column.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1),),
    images=QwenVideo(axes=3, types="mm_token_type_ids", video="video_token_id", pace=4),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                **QWEN_TOKENS,
                "text_config": _TEXT_CONFIG,
                "vision_config": {
                    **QWEN_VISION,
                    "depth": 3,
                    "window_size": 16,
                    "fullatt_block_indexes": [1],
                    "out_hidden_size": 64,
                    "intermediate_size": 48,
                },
            }
        ),
    ),
)
