# SPDX-License-Identifier: Apache-2.0
"""PaddleOCR-VL, `transformers.models.paddleocr_vl`: patches line by line, and ERNIE 4.5."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_lines import PatchLines
from qeff_zoo.recipe import Tiny, rms_norm

from ._tiny_parts import PATCH_VISION, QWEN_TOKENS
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

RECIPE = replace(
    QWEN2_5_VL,
    model_type="paddleocr_vl",
    architectures=("PaddleOCRVLForConditionalGeneration",),
    special="Patches of images of any size, line by line; learned positions, interpolated; RoPE with three axes.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1),),
    images=PatchLines(taps="bilinear", axes=3, types="mm_token_type_ids"),
    tiny=(
        Tiny(
            config={
                **QWEN_TOKENS,
                "text_config": {**QWEN2_5_VL.tiny[0].config["text_config"], "head_dim": 16},
                "vision_config": PATCH_VISION,
            }
        ),
    ),
)
