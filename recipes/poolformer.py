# SPDX-License-Identifier: Apache-2.0
"""PoolFormer, `transformers.models.poolformer`: sail/poolformer_s12 and others.

Unusual: means of neighbours replace attention.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="poolformer",
    architectures=("PoolFormerForImageClassification",),
    task="image-classification",
    special="Means of neighbours in place of attention, in stages.",
    image_processor="PoolFormerImageProcessor",
    tiny=(
        Tiny(
            config={
                "depths": [2, 2, 2, 2],
                "hidden_sizes": [16, 32, 32, 48],
                "layer_scale_init_value": 0.7,
                "initializer_range": 0.2,
            },
            image_processor={"size": {"shortest_edge": 64}, "crop_size": 64, "crop_pct": 0.9},
        ),
    ),
)
