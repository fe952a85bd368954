# SPDX-License-Identifier: Apache-2.0
"""The image encoders of SigLIP, `transformers.models.siglip`.

Unusual: no class token; a learned query attends to all patches, and what it finds stands for the image.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="siglip_vision_model",
    architectures=("SiglipVisionModel",),
    special="ViT without a class token: a learned query attends to the last states.",
    image_processor="SiglipImageProcessor",
    tiny=(
        Tiny(
            config=VIT.tiny[0].config,
            image_processor={
                "image_processor_type": "SiglipImageProcessor",
                "size": {"height": 28, "width": 28},
            },
        ),
    ),
)
