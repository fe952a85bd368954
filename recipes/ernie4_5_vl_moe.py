# SPDX-License-Identifier: Apache-2.0
"""ERNIE 4.5 VL, `transformers.models.ernie4_5_vl_moe`: Qwen2-VL's seam, and experts of images beside those of text.

A token that begins or ends an image is the images' wherever it stands; in an answer transformers takes it for text.
"""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny, Transform, experts, rms_norm, sparse_layers

from ._tiny_parts import QWEN_VISION
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

_TOKENS = {
    "image_token_id": 200,
    "image_start_token_id": 201,
    "image_end_token_id": 202,
    "video_token_id": 203,
    "video_start_token_id": 204,
    "video_end_token_id": 205,
}
_ROPE = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [3, 3, 2]}
_MOE = {"moe_intermediate_size": [48, 24], "moe_num_experts": 5, "moe_k": 2}

RECIPE = replace(
    QWEN2_5_VL,
    model_type="ernie4_5_vl_moe",
    architectures=("Ernie4_5_VLMoeForConditionalGeneration",),
    special="Tokens of images have experts of their own; patches of images of any size; RoPE with three axes.",
    transforms=(
        rms_norm(lambda config: 2 * config.num_hidden_layers + 1),
        experts(lambda config: 2 * sparse_layers(config)),
        Transform(name="ernie_experts", count=sparse_layers),
    ),
    images=PatchGrid(axes=3, types="mm_token_type_ids"),
    tiny=(
        Tiny(
            config={
                **_TOKENS,
                "text_config": {
                    **QWEN2_5_VL.tiny[0].config["text_config"],
                    **_MOE,
                    "rope_parameters": _ROPE,
                },
                "vision_config": {**QWEN_VISION, "depth": 2, "intermediate_size": 48},
            }
        ),
    ),
)
