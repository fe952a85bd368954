# SPDX-License-Identifier: Apache-2.0
"""FastVLM, `transformers.models.fast_vlm`: LLaVA with a tower of the package timm, FastViT, and Qwen2."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llava import RECIPE as LLAVA
from .qwen2 import RECIPE as QWEN2

_MODEL_ARGS = {
    "layers": [1, 1, 1, 1, 1],
    "embed_dims": [16, 16, 32, 32, 32],
    "inference_mode": True,
}
_VISION_CONFIG = {
    "model_type": "timm_wrapper",
    "architecture": "fastvit_mci3",
    "initializer_range": 0.3,
    "hidden_size": 64,
    "model_args": _MODEL_ARGS,
}

RECIPE = replace(
    LLAVA,
    model_type="fast_vlm",
    architectures=("FastVlmForConditionalGeneration",),
    special="An image is read by convolutions, and by attention at last, of the package timm.",
    requires=("timm",),
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN2.tiny[0].config, "model_type": "qwen2"},
                "vision_config": _VISION_CONFIG,
                "image_token_id": 200,
            },
            image_processor={
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 128},
                "crop_size": {"height": 128, "width": 128},
            },
        ),
    ),
)
