# SPDX-License-Identifier: Apache-2.0
"""MobileNet v2, `transformers.models.mobilenet_v2`: google/mobilenet_v2_1.0_224, deeplabv3_mobilenet_v2_1.0_513.

Unusual: bottlenecks that are widest within; padding of TensorFlow; class 0 stands for none.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="mobilenet_v2",
    architectures=(
        "MobileNetV2Model",
        "MobileNetV2ForImageClassification",
        "MobileNetV2ForSemanticSegmentation",
    ),
    special="Inverted bottlenecks of depthwise convolutions, padded as TensorFlow does.",
    image_processor="MobileNetV2ImageProcessor",
    tiny=(
        Tiny(
            config={
                "depth_multiplier": 0.25,
                "min_depth": 8,
                "image_size": 64,
                "output_stride": 16,
                "id2label": PIXEL_LABELS,
            },
            image_processor={"size": {"shortest_edge": 72}, "crop_size": 64},
        ),
    ),
)
