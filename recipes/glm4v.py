# SPDX-License-Identifier: Apache-2.0
"""GLM-4.1V, `transformers.models.glm4v`: patches of any image, their learned positions interpolated, and GLM-4."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny, rms_norm

from ._tiny_parts import GLM_VISION, MULTIMODAL_ROPE
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

#: Images and videos, as its relatives read them too.
IMAGES = PatchGrid(
    axes=3,
    types="mm_token_type_ids",
    taps="bicubic",
    video="video_token_id",
    video_processor="Glm4vVideoProcessor",
)
_TOKENS = {
    "image_token_id": 200,
    "image_start_token_id": 201,
    "image_end_token_id": 202,
    "video_token_id": 203,
    "video_start_token_id": 204,
    "video_end_token_id": 205,
}
_VISION_CONFIG = {
    **GLM_VISION,
    "image_size": 20,
    "initializer_range": 0.1,  # 0.2 magnifies rounding
}
_TEXT_CONFIG = {**QWEN2_5_VL.tiny[0].config["text_config"], "rope_parameters": MULTIMODAL_ROPE}

RECIPE = replace(
    QWEN2_5_VL,
    model_type="glm4v",
    architectures=("Glm4vForConditionalGeneration",),
    special="Patches of images of any size; learned positions, interpolated by cubes; RoPE with three axes.",
    images=IMAGES,
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(Tiny(config={**_TOKENS, "text_config": _TEXT_CONFIG, "vision_config": _VISION_CONFIG}),),
)
