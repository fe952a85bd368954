# SPDX-License-Identifier: Apache-2.0
"""Chinese-CLIP, `transformers.models.chinese_clip`: OFA-Sys/chinese-clip-vit-base-patch16 and others.

Unusual: CLIP's images beside texts of a BERT, whose first state is projected.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT
from .clip import RECIPE as CLIP

_CLIP = CLIP.tiny[0]

RECIPE = replace(
    CLIP,
    model_type="chinese_clip",
    architectures=("ChineseCLIPModel",),
    special="CLIP's images beside texts of a BERT.",
    image_processor="ChineseCLIPImageProcessor",
    tiny=(
        Tiny(
            config={**_CLIP.config, "text_config": BERT.tiny[0].config},
            image_processor={
                "size": {"height": 28, "width": 28},
                "crop_size": 28,
                "do_center_crop": False,
            },
        ),
    ),
)
