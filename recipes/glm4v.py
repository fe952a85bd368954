# SPDX-License-Identifier: Apache-2.0
"""GLM-4.1V, `transformers.models.glm4v`: patches of any picture, their learned positions interpolated, and GLM-4."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny, rms_norm

from .glm_ocr import ROPE
from .glm_ocr import VISION as PLAIN
from .qwen2_5_vl import RECIPE as QWEN2_5_VL
from .qwen2_5_vl import TEXT

_IDS = [f"{kind}{part}_token_id" for kind in ("image", "video") for part in ("", "_start", "_end")]
TOKENS = {name: 200 + place for place, name in enumerate(_IDS)}
_TEXT_CONFIG = {**TEXT, "rope_parameters": ROPE}
VISION = {**PLAIN, "image_size": 20, "initializer_range": 0.1}  # 0.2 magnifies rounding
_PATCHES = PatchGrid(axes=3, types="mm_token_type_ids", taps="bicubic")
IMAGES = replace(_PATCHES, video="video_token_id", video_processor="Glm4vVideoProcessor")

RECIPE = replace(
    QWEN2_5_VL,
    model_type="glm4v",
    architectures=("Glm4vForConditionalGeneration",),
    special="Patches of pictures of any size; learned positions, interpolated by cubes; RoPE with three axes.",
    images=IMAGES,
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(Tiny(config={**TOKENS, "text_config": _TEXT_CONFIG, "vision_config": VISION}),),
)
