# SPDX-License-Identifier: Apache-2.0
"""LFM2-VL, `transformers.models.lfm2_vl`: SigLIP 2 over tiles of any size, and LFM2."""

from dataclasses import replace

from qeff_zoo.multimodal.families.lfm2 import Lfm2Vl
from qeff_zoo.recipe import Tiny

from ._tiny_parts import SIGLIP2_VISION
from .lfm2 import RECIPE as LFM2
from .llava import RECIPE as LLAVA

_VISION_CONFIG = {
    **SIGLIP2_VISION,
    "model_type": "siglip2_vision_model",
    "vision_use_head": False,
    "num_patches": 16,
    "patch_size": 4,
}

RECIPE = replace(
    LLAVA,
    model_type="lfm2_vl",
    architectures=("Lfm2VlForConditionalGeneration",),
    special="Tiles of any size, and the whole; learned positions, interpolated with antialiasing.",
    transforms=LFM2.transforms,
    images=Lfm2Vl(),
    tiny=(
        Tiny(
            config={
                "text_config": {**LFM2.tiny[0].config, "model_type": "lfm2"},
                "vision_config": _VISION_CONFIG,
                "image_token_id": 200,
                "projector_hidden_size": 96,
            }
        ),
    ),
)
