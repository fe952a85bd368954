# SPDX-License-Identifier: Apache-2.0
"""Qianfan-OCR, `transformers.models.qianfan_ocr`: InternVL's images."""

from dataclasses import replace

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import Tiny

from .internvl import RECIPE as INTERNVL

RECIPE = replace(
    INTERNVL,
    model_type="qianfan_ocr",
    architectures=("QianfanOCRForConditionalGeneration",),
    special="InternVL's images, and Qwen 3.",
    images=Images(before=("<img>",), after=("</img>",)),
    former_text_types={"": "qwen3"},
    tiny=(
        Tiny(config={**INTERNVL.tiny[0].config}, image_processor=INTERNVL.tiny[0].image_processor),
    ),
)
