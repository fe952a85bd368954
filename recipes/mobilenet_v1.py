# SPDX-License-Identifier: Apache-2.0
"""MobileNet v1, `transformers.models.mobilenet_v1`: google/mobilenet_v1_1.0_224 and others.

Unusual: padding of TensorFlow, which depends on the image size; class 0 stands for none.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="mobilenet_v1",
    architectures=("MobileNetV1Model", "MobileNetV1ForImageClassification"),
    special="Depthwise convolutions with batch norms, padded as TensorFlow does.",
    image_processor="MobileNetV1ImageProcessor",
    tiny=(
        Tiny(
            config={"depth_multiplier": 0.25, "min_depth": 8, "image_size": 64},
            image_processor={"size": {"shortest_edge": 72}, "crop_size": 64},
        ),
    ),
)
