# SPDX-License-Identifier: Apache-2.0
"""GOT-OCR2, `transformers.models.got_ocr2`: SAM's tower, in windows with relative positions."""

from dataclasses import replace

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import Tiny

from .llava import RECIPE as LLAVA
from .qwen2 import RECIPE as QWEN2

SAM = {
    "hidden_size": 32,
    "output_channels": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 128,
    "patch_size": 16,
    "window_size": 4,
    "global_attn_indexes": [1],
    "mlp_dim": 48,
    "initializer_range": 0.2,
}

RECIPE = replace(
    LLAVA,
    model_type="got_ocr2",
    architectures=("GotOcr2ForConditionalGeneration",),
    special="SAM's tower reads a page, in windows with relative positions, most of them.",
    images=Images(),
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN2.tiny[0].config, "model_type": "qwen2"},
                "vision_config": SAM,
                "image_token_index": 200,
            }
        ),
    ),
)
