# SPDX-License-Identifier: Apache-2.0
"""UPerNet, `transformers.models.upernet`: openmmlab/upernet-convnext-tiny, openmmlab/upernet-swin-tiny and others.

Unusual: a backbone of any kind, whose maps are pooled at several scales and fused; logits have the image's size.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from ._tiny_parts import PIXEL_LABELS
from .convnext import RECIPE as CONVNEXT
from .segformer import RECIPE as SEGFORMER
from .swin import RECIPE as SWIN

_TINY = {
    "hidden_size": 24,
    "pool_scales": [1, 2, 3],
    "auxiliary_channels": 16,
    "id2label": PIXEL_LABELS,
    "initializer_range": 0.2,
}
_STAGES = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
_CONVNEXT = {**CONVNEXT.tiny[0].config, **_STAGES, "model_type": "convnext"}
_SWIN = {
    **SWIN.tiny[0].config,
    **_STAGES,
    "model_type": "swin",
    "image_size": 64,
    "depths": [2, 2, 2, 2],
    "num_heads": [1, 2, 4, 4],
}

RECIPE = replace(
    SEGFORMER,
    model_type="upernet",
    architectures=("UperNetForSemanticSegmentation",),
    special="Maps of any backbone, pooled at several scales and fused; logits have the size of the image.",
    tiny=(
        Tiny(config={**_TINY, "backbone_config": _CONVNEXT}, image_processor={"size": 64}),
        Tiny(
            name="swin",
            config={**_TINY, "backbone_config": _SWIN},
            image_processor={"size": {"height": 64, "width": 64}},
        ),
    ),
)
