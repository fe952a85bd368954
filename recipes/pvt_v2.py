# SPDX-License-Identifier: Apache-2.0
"""PVT v2, `transformers.models.pvt_v2`: OpenGVLab/pvt_v2_b0 and others.

Unusual: overlapping patches, convolutions within the MLP, and linear attention in some checkpoints.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_TINY = {
    "image_size": 64,
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [2, 2, 2, 2],
    "num_attention_heads": [1, 2, 2, 4],
    "mlp_ratios": [2, 2, 2, 2],
    "initializer_range": 0.2,
}

RECIPE = replace(
    VIT,
    model_type="pvt_v2",
    architectures=("PvtV2ForImageClassification",),
    task="image-classification",
    special="PVT with overlapping patches and convolutions within the MLP, perhaps with pooled keys.",
    image_processor="PvtImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor={"size": 64}),
        Tiny(
            name="linear", config={**_TINY, "linear_attention": True}, image_processor={"size": 64}
        ),
    ),
)
