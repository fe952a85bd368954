# SPDX-License-Identifier: Apache-2.0
"""Depth Anything, `transformers.models.depth_anything`: LiheYoung/depth-anything-small-hf to large, and version 2.

Unusual: DPT's fusion on states of DINOv2, in the aspect ratio of each image. Metric checkpoints scale a sigmoid by
`max_depth`.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .dpt import RECIPE as DPT

_TINY = {
    "backbone_config": DPT.tiny[1].config["backbone_config"],
    "reassemble_hidden_size": 64,
    "patch_size": 8,
    "neck_hidden_sizes": [8, 12, 16, 20],
    "fusion_hidden_size": 24,
    "head_hidden_size": 12,
    "initializer_range": 0.2,
}
_IMAGE_PROCESSOR = {"size": 48, "keep_aspect_ratio": True, "ensure_multiple_of": 8}

RECIPE = replace(
    DPT,
    model_type="depth_anything",
    architectures=("DepthAnythingForDepthEstimation",),
    transforms=(
        Transform(
            name="symbolic_sizes",
            count=lambda config: 1,
            parameters={"name": "DepthEstimationHead"},
        ),
    ),
    special="DPT's fusion on states of DINOv2, for images of any size.",
    tiny=(
        Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            name="metric",
            config={
                **_TINY,
                "depth_estimation_type": "metric",
                "max_depth": 20,
                "initializer_range": 0.12,  # with larger weights the sigmoid is 0 or 1, and its steps are noise
            },
            image_processor=_IMAGE_PROCESSOR,
        ),
    ),
)
