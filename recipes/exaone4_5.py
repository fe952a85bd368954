# SPDX-License-Identifier: Apache-2.0
"""EXAONE 4.5, `transformers.models.exaone4_5`: Qwen2.5-VL's vision encoder with grouped queries, and EXAONE 4."""

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

from .exaone4 import RECIPE as EXAONE4
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

_TEXT_CONFIG = {
    **EXAONE4.tiny[0].config,
    "model_type": "exaone4",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION_CONFIG = {
    **QWEN2_5_VL.tiny[0].config["vision_config"],
    "num_heads": 4,
    "num_key_value_heads": 2,
}

RECIPE = Recipe(
    model_type="exaone4_5",
    architectures=("Exaone4_5_ForConditionalGeneration",),
    task="image-text-to-text",
    special="Patches of images of any size; windows in most vision layers, whose heads share keys.",
    transforms=EXAONE4.transforms,
    images=PatchGrid(),
    shapes=DECODER_SHAPES,
    former_text_types={"exaone4_5_text": "exaone4"},
    tiny=(
        Tiny(
            config={
                "image_token_id": 200,
                "video_token_id": 201,
                "text_config": _TEXT_CONFIG,
                "vision_config": _VISION_CONFIG,
            }
        ),
    ),
)
