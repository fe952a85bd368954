# SPDX-License-Identifier: Apache-2.0
"""CvT, `transformers.models.cvt`: microsoft/cvt-13 and others.

Unusual: queries, keys and values come of depthwise convolutions; only the last stage has a class token.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="cvt",
    architectures=("CvtForImageClassification",),
    task="image-classification",
    special="Stages of attention whose projections are depthwise convolutions; a class token in the last stage.",
    image_processor="ConvNextImageProcessor",
    tiny=(
        Tiny(
            config={
                "embed_dim": [16, 32, 32],
                "num_heads": [1, 2, 4],
                "depth": [1, 2, 3],
                "initializer_range": 0.2,
            },
            image_processor={"size": {"shortest_edge": 64}, "crop_pct": 0.875},
        ),
    ),
)
