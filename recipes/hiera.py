# SPDX-License-Identifier: Apache-2.0
"""Hiera, `transformers.models.hiera`: facebook/hiera-tiny-224-in1k-hf and others.

Unusual: patches stand in the order of their windows, and queries are pooled from stage to stage.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="hiera",
    architectures=("HieraModel", "HieraForImageClassification"),
    special="Windows of patches in one sequence, with queries that are pooled from stage to stage.",
    image_processor="BitImageProcessor",
    tiny=(
        Tiny(
            config={
                "image_size": [64, 64],
                "embed_dim": 16,
                "depths": [2, 2, 2, 2],
                "num_heads": [1, 2, 4, 8],
                "initializer_range": 0.2,
            },
            image_processor={"size": {"shortest_edge": 72}, "crop_size": 64},
        ),
    ),
)
