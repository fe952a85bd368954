# SPDX-License-Identifier: Apache-2.0
"""MiniCPM-V 4.6, `transformers.models.minicpmv4_6`: slices of an image, merged within the encoder too, and Qwen3.5."""

from dataclasses import replace

from qeff_zoo.multimodal.families.minicpm import MiniCpm
from qeff_zoo.recipe import Tiny

from .qwen3_5_text import RECIPE as QWEN3_5_TEXT

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
}
_VISION_CONFIG = {**_SIZES, "image_size": 28, "patch_size": 4}
_IMAGE_PROCESSOR = {
    "image_processor_type": "MiniCPMV4_6ImageProcessor",
    "patch_size": 4,
    "scale_resolution": 24,
}
_TINY = {
    "text_config": {**QWEN3_5_TEXT.tiny[0].config, "model_type": "qwen3_5_text"},
    "vision_config": _VISION_CONFIG,
    "insert_layer_id": 1,
    "image_token_id": 200,
    "video_token_id": 201,
}

RECIPE = replace(
    QWEN3_5_TEXT,
    model_type="minicpmv4_6",
    architectures=("MiniCPMV4_6ForConditionalGeneration",),
    special="An image and slices of it; squares of patches are merged behind a layer, and those again at the end.",
    task="image-text-to-text",
    images=MiniCpm(
        video="video_token_id",
        video_processor="MiniCPMV4_6VideoProcessor",
        stamp=("", ""),
    ),
    tiny=(Tiny(config=_TINY, image_processor={**_IMAGE_PROCESSOR, "max_slice_nums": 4}),),
)
