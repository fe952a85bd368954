# SPDX-License-Identifier: Apache-2.0
"""HyperCLOVA X SEED Think with images, `transformers.models.hyperclovax_vision_v2`: Qwen2.5-VL's vision encoder."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny

from .hyperclovax import RECIPE as HYPERCLOVAX
from .llava import RECIPE as LLAVA
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

RECIPE = replace(
    LLAVA,
    model_type="hyperclovax_vision_v2",
    architectures=("HyperCLOVAXVisionV2ForConditionalGeneration",),
    special="Qwen2.5-VL's vision encoder and one matrix; RoPE with one axis.",
    images=PatchGrid(),
    tiny=(
        Tiny(
            config={
                "text_config": {**HYPERCLOVAX.tiny[0].config, "model_type": "hyperclovax"},
                "vision_config": {
                    **QWEN2_5_VL.tiny[0].config["vision_config"],
                    "model_type": "qwen2_5_vl_vision",
                },
                "image_token_id": 200,
                "video_token_id": 201,
            }
        ),
    ),
)
