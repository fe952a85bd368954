# SPDX-License-Identifier: Apache-2.0
"""ConvNeXt, `transformers.models.convnext`: facebook/convnext-tiny-224 and others.

Unusual: no attention, but depthwise convolutions of 7 x 7 pixels with layer scale.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="convnext",
    architectures=("ConvNextModel", "ConvNextForImageClassification"),
    special="Convolutions of 7 x 7 pixels, depthwise, with layer scale; the mean of the last stage.",
    image_processor="ConvNextImageProcessor",
    tiny=(
        Tiny(
            config={
                "hidden_sizes": [16, 32, 32, 48],
                "depths": [2, 2, 2, 2],
                "layer_scale_init_value": 0.7,
                "initializer_range": 0.2,
            },
            image_processor={"size": {"shortest_edge": 64}, "crop_pct": 0.875},
        ),
    ),
)
