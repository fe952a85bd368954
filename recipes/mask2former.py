# SPDX-License-Identifier: Apache-2.0
"""Mask2Former, `transformers.models.mask2former`: facebook/mask2former-swin-tiny-coco-instance and others.

Unusual: maps of three resolutions, which an encoder samples at learned offsets; each layer of the decoder reads one of
them, where the mask of the layer before is above one half.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .maskformer import RECIPE as MASKFORMER
from .upernet import RECIPE as UPERNET

_TINY = {
    "backbone_config": UPERNET.tiny[1].config["backbone_config"],
    "feature_size": 32,
    "mask_feature_size": 24,
    "hidden_dim": 32,
    "encoder_feedforward_dim": 48,
    "encoder_layers": 3,
    "decoder_layers": 5,
    "num_attention_heads": 4,
    "dim_feedforward": 40,
    "num_queries": 9,
    "id2label": PIXEL_LABELS,
    "init_std": 0.2,
    "init_xavier_std": 2.0,
}

RECIPE = replace(
    MASKFORMER,
    model_type="mask2former",
    architectures=("Mask2FormerForUniversalSegmentation",),
    special="Queries that read maps of several resolutions, where the mask of the layer before is.",
    image_processor="Mask2FormerImageProcessor",
    tiny=(Tiny(config=_TINY, image_processor={"size": {"height": 64, "width": 96}}),),
)
