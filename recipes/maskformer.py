# SPDX-License-Identifier: Apache-2.0
"""MaskFormer, `transformers.models.maskformer`: facebook/maskformer-swin-base-coco and others.

Unusual: queries read the coarsest map of a backbone, and each has logits of labels and a mask: its product with the
finest map, which a pyramid of convolutions computes.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .resnet import RECIPE as RESNET
from .segformer import RECIPE as SEGFORMER
from .upernet import RECIPE as UPERNET

_DECODER = {
    "model_type": "detr",
    "d_model": 32,
    "num_queries": 9,
    "encoder_layers": 2,
    "decoder_layers": 4,
    "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
}
_TINY = {
    "fpn_feature_size": 32,
    "mask_feature_size": 24,
    "decoder_config": _DECODER,
    "id2label": PIXEL_LABELS,
    "init_std": 0.2,
    "init_xavier_std": 2.0,
}
_RESNET = {
    **RESNET.tiny[0].config,
    "model_type": "resnet",
    "out_features": ["stage1", "stage2", "stage3"],
}

RECIPE = replace(
    SEGFORMER,
    model_type="maskformer",
    architectures=("MaskFormerForInstanceSegmentation",),
    special="Queries with logits of labels, and with masks: products with a map of pixels.",
    image_processor="MaskFormerImageProcessor",
    tiny=(
        Tiny(
            config={**_TINY, "backbone_config": UPERNET.tiny[1].config["backbone_config"]},
            image_processor={"size": {"height": 64, "width": 96}},
        ),
        Tiny(
            name="resnet",
            config={**_TINY, "backbone_config": _RESNET},
            image_processor={"size": {"shortest_edge": 64, "longest_edge": 128}},
        ),
    ),
)
