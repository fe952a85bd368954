# SPDX-License-Identifier: Apache-2.0
"""GOT-OCR2, `transformers.models.got_ocr2`: SAM's vision encoder, in windows with relative positions."""

from dataclasses import replace

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import Tiny

from ._tiny_parts import SAM_VISION
from .llava import RECIPE as LLAVA
from .qwen2 import RECIPE as QWEN2

RECIPE = replace(
    LLAVA,
    model_type="got_ocr2",
    architectures=("GotOcr2ForConditionalGeneration",),
    special="SAM's vision encoder reads a page, in windows with relative positions, most of them.",
    images=Images(),
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN2.tiny[0].config, "model_type": "qwen2"},
                "vision_config": SAM_VISION,
                "image_token_index": 200,
            }
        ),
    ),
)
