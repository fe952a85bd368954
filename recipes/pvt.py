# SPDX-License-Identifier: Apache-2.0
"""PVT, `transformers.models.pvt`: Zetatech/pvt-tiny-224 and others.

Unusual: keys and values of patches that are merged before attention.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="pvt",
    architectures=("PvtForImageClassification",),
    task="image-classification",
    special="Stages of attention whose keys and values are merged patches; a class token in the last stage.",
    image_processor="PvtImageProcessor",
    tiny=(
        Tiny(
            config={
                "image_size": 64,
                "hidden_sizes": [16, 16, 32, 32],
                "depths": [2, 2, 2, 2],
                "num_attention_heads": [1, 2, 2, 4],
                "mlp_ratios": [2, 2, 2, 2],
                "initializer_range": 0.2,
                "num_labels": 3,
                "id2label": {"0": "cat", "1": "dog", "2": "owl"},
            },
            image_processor={"size": 64},
        ),
    ),
)
