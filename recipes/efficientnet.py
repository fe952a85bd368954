# SPDX-License-Identifier: Apache-2.0
"""EfficientNet, `transformers.models.efficientnet`: google/efficientnet-b0 to b7.

Unusual: inverted bottlenecks that squeeze and excite channels; the processor divides by the deviation once more.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="efficientnet",
    architectures=("EfficientNetModel", "EfficientNetForImageClassification"),
    special="Inverted bottlenecks with squeeze and excitation, scaled in width, depth and size.",
    image_processor="EfficientNetImageProcessor",
    tiny=(
        Tiny(
            config={
                "image_size": 64,
                "width_coefficient": 0.25,
                "depth_coefficient": 1.0,
                "hidden_dim": 320,
                "initializer_range": 0.2,
            },
            image_processor={"size": {"height": 64, "width": 64}},
        ),
    ),
)
