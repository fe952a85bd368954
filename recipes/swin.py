# SPDX-License-Identifier: Apache-2.0
"""Swin, `transformers.models.swin`: microsoft/swin-tiny-patch4-window7-224 and others.

Unusual: attention within windows that are shifted in every other layer, and patches that are merged from stage to
stage; the mean of the last ones stands for the image.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="swin",
    architectures=("SwinModel", "SwinForImageClassification"),
    special="Attention within shifted windows, with biases by relative position; patches merged from stage to stage.",
    tiny=(
        Tiny(
            config={
                "image_size": 32,
                "patch_size": 2,
                "embed_dim": 16,
                "depths": [2, 2, 2],
                "num_heads": [2, 4, 4],
                "window_size": 4,
                "initializer_range": 0.2,
            },
            image_processor={"size": 32},
        ),
    ),
)
