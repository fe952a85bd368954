# SPDX-License-Identifier: Apache-2.0
"""MobileViT v2, `transformers.models.mobilevitv2`: apple/mobilevitv2-1.0-imagenet1k-256 and others.

Unusual: linear attention, of one context vector for all patches; images are BGR.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .mobilevit import RECIPE as MOBILEVIT

RECIPE = replace(
    MOBILEVIT,
    model_type="mobilevitv2",
    architectures=(
        "MobileViTV2Model",
        "MobileViTV2ForImageClassification",
        "MobileViTV2ForSemanticSegmentation",
    ),
    special="MobileViT with linear attention: one context vector for all patches.",
    tiny=(
        Tiny(
            config={
                "image_size": 64,
                "width_multiplier": 0.25,
                "output_stride": 16,
                "aspp_out_channels": 24,
                "id2label": PIXEL_LABELS,
                "initializer_range": 0.2,
            },
            image_processor=MOBILEVIT.tiny[0].image_processor,
        ),
    ),
)
