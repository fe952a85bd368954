# SPDX-License-Identifier: Apache-2.0
"""SegFormer, `transformers.models.segformer`: nvidia/segformer-b0-finetuned-ade-512-512, nvidia/mit-b0 and others.

Unusual: overlapping patches, keys and values of merged patches, and convolutions within the MLP; logits of labels are
a fourth of the image's size.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .vit import RECIPE as VIT

RECIPE = replace(
    VIT,
    model_type="segformer",
    architectures=("SegformerForSemanticSegmentation", "SegformerForImageClassification"),
    task="image-segmentation",
    special="PVT v2 in other words: overlapping patches, merged keys, convolutions within the MLP.",
    image_processor="SegformerImageProcessor",
    tiny=(
        Tiny(
            config={
                "hidden_sizes": [16, 16, 32, 32],
                "depths": [2, 2, 2, 2],
                "num_attention_heads": [1, 2, 2, 4],
                "decoder_hidden_size": 32,
                "initializer_range": 0.2,
                "id2label": PIXEL_LABELS,
            },
            image_processor={"size": 64},
        ),
    ),
)
