# SPDX-License-Identifier: Apache-2.0
"""MobileViT, `transformers.models.mobilevit`: apple/mobilevit-small, apple/deeplabv3-mobilevit-small and others.

Unusual: convolutions, and attention among pixels at the same place of each patch; images are BGR.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="mobilevit",
    architectures=(
        "MobileViTModel",
        "MobileViTForImageClassification",
        "MobileViTForSemanticSegmentation",
    ),
    special="Convolutions, and attention among pixels at the same place of each patch; blue comes first.",
    image_processor="MobileViTImageProcessor",
    tiny=(
        Tiny(
            config={
                "image_size": 64,
                "hidden_sizes": [32, 48, 64],
                "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 96],
                "num_attention_heads": 4,
                "output_stride": 16,
                "aspp_out_channels": 24,
                "id2label": PIXEL_LABELS,
                "initializer_range": 0.2,
            },
            image_processor={"size": {"shortest_edge": 72}, "crop_size": 64},
        ),
    ),
)
