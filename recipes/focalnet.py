# SPDX-License-Identifier: Apache-2.0
"""FocalNet, `transformers.models.focalnet`: microsoft/focalnet-tiny and others.

Unusual: no attention, but gated sums of convolutions of growing width, which modulate a query.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="focalnet",
    architectures=(
        "FocalNetModel",
        "FocalNetForImageClassification",
        "FocalNetForMaskedImageModeling",
    ),
    special="No attention: gated convolutions of growing width modulate each patch.",
    image_processor="BitImageProcessor",
    tiny=(
        Tiny(
            config={
                "image_size": 32,
                "patch_size": 2,
                "embed_dim": 16,
                "depths": [2, 2, 2],
                "focal_levels": [2, 2, 2],
                "focal_windows": [3, 3, 3],
                "initializer_range": 0.2,
            },
            image_processor={"size": {"shortest_edge": 36}, "crop_size": 32},
        ),
    ),
)
