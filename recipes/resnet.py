# SPDX-License-Identifier: Apache-2.0
"""ResNet, `transformers.models.resnet`: microsoft/resnet-50 and others.

Unusual: batch norms, with the means and variances of training.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_TINY = {"embedding_size": 16, "hidden_sizes": [16, 32, 32], "depths": [2, 2, 2]}
_IMAGE_PROCESSOR = {"size": {"shortest_edge": 64}, "crop_pct": 0.875}

RECIPE = replace(
    VIT,
    model_type="resnet",
    architectures=("ResNetModel", "ResNetForImageClassification"),
    special="Residual convolutions with batch norms, basic or bottlenecks; the mean of the last stage.",
    image_processor="ConvNextImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            name="basic", config={**_TINY, "layer_type": "basic"}, image_processor=_IMAGE_PROCESSOR
        ),
    ),
)
