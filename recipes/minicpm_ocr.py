# SPDX-License-Identifier: Apache-2.0
"""MiniCPM-OCR, `transformers.models.minicpm_ocr`: MiniCPM-V 4.6 that keeps four times as many rows of an image."""

from dataclasses import replace

from qeff_zoo.multimodal.families.minicpm_ocr import MiniCpmOcr
from qeff_zoo.recipe import Tiny

from .minicpmv4_6 import RECIPE as MINICPMV4_6

_CONFIG = MINICPMV4_6.tiny[0].config

RECIPE = replace(
    MINICPMV4_6,
    model_type="minicpm_ocr",
    architectures=("MiniCPMOcrForConditionalGeneration",),
    special="An image and slices of it; squares of patches are merged behind a layer only if a config says so.",
    images=MiniCpmOcr(
        video="video_token_id", video_processor="MiniCPMOcrVideoProcessor", stamp=("", "")
    ),
    image_processor="MiniCPMOcrImageProcessor",
    tiny=(
        Tiny(config=_CONFIG),
        Tiny(name="merged", config={**_CONFIG, "downsample_mode": "16x"}),
    ),
)
