# SPDX-License-Identifier: Apache-2.0
"""DeiT, `transformers.models.deit`: facebook/deit-base-patch16-224, distilled or not.

Unusual: a second token, for distillation, whose head is averaged with the other's in distilled checkpoints.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_IMAGE_PROCESSOR = {"size": 32, "crop_size": 28}


def _tiny(name: str, architecture: str) -> Tiny:
    config = {**VIT.tiny[0].config, "architectures": [architecture]}
    return Tiny(name=name, config=config, image_processor=_IMAGE_PROCESSOR)


RECIPE = replace(
    VIT,
    model_type="deit",
    architectures=(
        "DeiTModel",
        "DeiTForImageClassification",
        "DeiTForImageClassificationWithTeacher",
    ),
    special="ViT with a distillation token.",
    image_processor="DeiTImageProcessor",
    tiny=(
        _tiny("base", "DeiTForImageClassification"),
        _tiny("distilled", "DeiTForImageClassificationWithTeacher"),
    ),
)
