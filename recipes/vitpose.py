# SPDX-License-Identifier: Apache-2.0
"""ViTPose, `transformers.models.vitpose`: usyd-community/vitpose-base-simple, vitpose-plus-base and others.

Unusual: patches overlap the edges; heat maps follow from the last states. ViTPose++ has experts in each MLP,
which the number of a data set selects (0 is COCO). transformers' processor needs scipy.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_BACKBONE = {
    "model_type": "vitpose_backbone",
    "image_size": [64, 48],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "mlp_ratio": 2,
    "layer_norm_eps": 1e-3,
    "initializer_range": 0.2,
    "out_indices": [4],
}
_TINY = {
    "backbone_config": _BACKBONE,
    "initializer_range": 0.2,
    "id2label": {"0": "Nose", "1": "L_Eye", "2": "R_Eye", "3": "L_Knee", "4": "R_Knee"},
}
_PLUS = {**_TINY, "backbone_config": {**_BACKBONE, "num_experts": 3, "part_features": 16}}

RECIPE = replace(
    VIT,
    model_type="vitpose",
    architectures=("VitPoseForPoseEstimation",),
    task="keypoint-detection",
    special="ViT with heat maps of keypoints; perhaps experts in each MLP, selected by the number of a data set.",
    requires=("scipy",),
    image_processor="VitPoseImageProcessor",
    tiny=tuple(
        Tiny(name=name, config=config, image_processor={"size": {"height": 64, "width": 48}})
        for name, config in (
            ("base", _TINY),
            ("classic", {**_TINY, "use_simple_decoder": False}),
            ("plus", _PLUS),
        )
    ),
)
