# SPDX-License-Identifier: Apache-2.0
"""The image encoders of CLIP, `transformers.models.clip`."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="clip_vision_model",
    architectures=("CLIPVisionModel",),
    special="ViT with a norm before the layers; the projection into the space of texts is not part of it.",
    image_processor="CLIPImageProcessor",
    tiny=(
        Tiny(
            config={**VIT.tiny[0].config, "initializer_factor": 3.0},
            image_processor={
                "image_processor_type": "CLIPImageProcessor",
                "size": 28,
                "crop_size": 28,
            },
        ),
    ),
)
