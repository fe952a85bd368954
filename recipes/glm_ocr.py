# SPDX-License-Identifier: Apache-2.0
"""GLM-OCR, `transformers.models.glm_ocr`: Qwen2-VL's seam with a downsampling convolution, and GLM-4."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny, rms_norm

from .qwen2_5_vl import RECIPE as QWEN2_5_VL
from .qwen2_5_vl import TEXT

_IDS = ("image_token_id", "video_token_id", "image_start_token_id", "image_end_token_id")
TOKENS = {name: 200 + place for place, name in enumerate(_IDS)}
_TURN = {"rope_type": "default", "rope_theta": 1000.0}
ROPE = {**_TURN, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
_SIZES = {"hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
VISION = {**_SIZES, "depth": 2, "patch_size": 4, "image_size": 16, "initializer_range": 0.2}

RECIPE = replace(
    QWEN2_5_VL,
    model_type="glm_ocr",
    architectures=("GlmOcrForConditionalGeneration",),
    special="Patches of pictures of any size; vision layers norm queries and keys; RoPE over time, row and column.",
    images=PatchGrid(axes=3, types="mm_token_type_ids"),
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(
        Tiny(
            config={
                **TOKENS,
                "text_config": {**TEXT, "rope_parameters": ROPE},
                "vision_config": VISION,
            }
        ),
    ),
)
