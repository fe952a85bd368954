# SPDX-License-Identifier: Apache-2.0
"""Image encoders of timm, `transformers.models.timm_wrapper`: timm/resnet50.a1_in1k and over a thousand others.

Their config.json names an architecture of timm, and has the settings of its image processor; labels are timm's, too.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_PREPROCESSING = {
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "mean": [0.5, 0.4, 0.3],
    "std": [0.2, 0.3, 0.4],
}
_LABELS = {"num_classes": 3, "label_names": ["cat", "dog", "bird"], "initializer_range": 0.2}
_CONFIG = {"pretrained_cfg": {**_PREPROCESSING, "input_size": [3, 64, 64]}, **_LABELS}

RECIPE = replace(
    VIT,
    model_type="timm_wrapper",
    architectures=("TimmWrapperModel", "TimmWrapperForImageClassification"),
    special="Any image encoder that timm makes; what becomes of an image, and the labels, are timm's.",
    detected_by=("pretrained_cfg",),
    requires=("timm",),
    image_processor="TimmWrapperImageProcessor",
    tiny=(
        Tiny(config={**_CONFIG, "architecture": "test_resnet"}),
        Tiny(
            config={**_CONFIG, "architecture": "test_vit", "model_args": {"img_size": 64}},
            name="vit",
        ),
        Tiny(config={**_CONFIG, "architecture": "test_efficientnet"}, name="efficientnet"),
    ),
)
