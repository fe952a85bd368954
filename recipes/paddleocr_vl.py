# SPDX-License-Identifier: Apache-2.0
"""PaddleOCR-VL, `transformers.models.paddleocr_vl`: patches line by line, and ERNIE 4.5."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_lines import PatchLines
from qeff_zoo.recipe import Tiny, rms_norm

from .qwen2_5_vl import RECIPE as QWEN2_5_VL
from .qwen2_5_vl import TEXT, TOKENS

VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "initializer_range": 0.2,
}
_LINES = PatchLines()

RECIPE = replace(
    QWEN2_5_VL,
    model_type="paddleocr_vl",
    architectures=("PaddleOCRVLForConditionalGeneration",),
    special="Patches of pictures of any size, line by line; learned positions, interpolated; RoPE with three axes.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1),),
    images=replace(_LINES, taps="bilinear", axes=3, types="mm_token_type_ids"),
    tiny=(
        Tiny(config={**TOKENS, "text_config": {**TEXT, "head_dim": 16}, "vision_config": VISION}),
    ),
)
