# SPDX-License-Identifier: Apache-2.0
"""DETR, `transformers.models.detr`: facebook/detr-resnet-50 (revision no_timm), facebook/detr-resnet-101 and others.

Unusual: an encoder of the last maps of a convolutional backbone, and a decoder of all queries at once. Positions are
sines of shares of the image, added to queries and keys. Most checkpoints have a backbone of timm, which must be
installed. `DetrForSegmentation`, which also returns masks, has no recipe yet.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

from .resnet import RECIPE as RESNET
from .yolos import RECIPE as YOLOS

_BACKBONE = {
    **RESNET.tiny[0].config,
    "model_type": "resnet",
    "out_features": ["stage3"],
}
_TINY = {
    "backbone_config": _BACKBONE,
    "use_timm_backbone": False,
    "d_model": 64,
    "num_queries": 7,
    "encoder_layers": 4,
    "encoder_ffn_dim": 96,
    "encoder_attention_heads": 4,
    "decoder_layers": 4,
    "decoder_ffn_dim": 80,
    "decoder_attention_heads": 2,
    "init_std": 0.2,
    "init_xavier_std": 2.0,
    "id2label": YOLOS.tiny[0].config["id2label"],
}
_IMAGE_PROCESSOR = {"size": {"shortest_edge": 64, "longest_edge": 128}}

RECIPE = Recipe(
    model_type="detr",
    architectures=("DetrForObjectDetection",),
    task="object-detection",
    special="Encoder-decoder of convolutional maps and of queries, each with logits of labels and a box.",
    shapes=IMAGE_SHAPES,
    image_processor="DetrImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            name="learned",
            config={**_TINY, "position_embedding_type": "learned"},
            image_processor=_IMAGE_PROCESSOR,
        ),
    ),
)
