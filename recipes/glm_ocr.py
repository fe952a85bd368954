# SPDX-License-Identifier: Apache-2.0
"""GLM-OCR, `transformers.models.glm_ocr`: Qwen2-VL's seam with a downsampling convolution, and GLM-4."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny, rms_norm

from ._tiny_parts import GLM_VISION, MULTIMODAL_ROPE
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

RECIPE = replace(
    QWEN2_5_VL,
    model_type="glm_ocr",
    architectures=("GlmOcrForConditionalGeneration",),
    special="Patches of images of any size; vision layers norm queries and keys; RoPE over time, row and column.",
    images=PatchGrid(axes=3, types="mm_token_type_ids"),
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(
        Tiny(
            config={
                "image_token_id": 200,
                "video_token_id": 201,
                "image_start_token_id": 202,
                "image_end_token_id": 203,
                "text_config": {
                    **QWEN2_5_VL.tiny[0].config["text_config"],
                    "rope_parameters": MULTIMODAL_ROPE,
                },
                "vision_config": GLM_VISION,
            }
        ),
    ),
)
