# SPDX-License-Identifier: Apache-2.0
"""Deformable DETR, `transformers.models.deformable_detr`: SenseTime/deformable-detr and others.

Unusual: encoder and decoder sample maps of several resolutions at learned offsets. With `two_stage`, queries are the
places with the best scores, and with `with_box_refine` each layer corrects the boxes of the layer before.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .detr import RECIPE as DETR

_BACKBONE = {
    **DETR.tiny[0].config["backbone_config"],
    "out_features": ["stage1", "stage2", "stage3"],
}
_TINY = {
    **DETR.tiny[0].config,
    "backbone_config": _BACKBONE,
    "num_feature_levels": 4,
    "encoder_n_points": 3,
    "decoder_n_points": 2,
}
_IMAGE_PROCESSOR = {"size": {"shortest_edge": 96, "longest_edge": 128}}

RECIPE = replace(
    DETR,
    model_type="deformable_detr",
    architectures=("DeformableDetrForObjectDetection",),
    transforms=(
        Transform(
            name="symbolic_grids",
            count=lambda config: 2,
            parameters={"prefix": "Deformable"},
        ),
    ),
    special="DETR that samples maps of several resolutions at learned offsets.",
    image_processor="DeformableDetrImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            name="two_stage",
            config={
                **_TINY,
                "two_stage": True,
                "with_box_refine": True,
                "two_stage_num_proposals": 9,
            },
            image_processor=_IMAGE_PROCESSOR,
        ),
    ),
)
