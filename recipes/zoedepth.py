# SPDX-License-Identifier: Apache-2.0
"""ZoeDepth, `transformers.models.zoedepth`: Intel/zoedepth-nyu, Intel/zoedepth-kitti, Intel/zoedepth-nyu-kitti.

Unusual: DPT's fusion on states of BEiT, whose relative positions are interpolated to the size of the image; a metric
depth is a sum of bins, weighted by a log-binomial distribution. A model of two domains chooses one for each image.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .beit import RECIPE as BEIT
from .dpt import RECIPE as DPT

_SEGMENTING = ("out_indices", "id2label")  # of a whole BEiT
_TINY = {
    "backbone_config": {
        **{key: value for key, value in BEIT.tiny[0].config.items() if key not in _SEGMENTING},
        "model_type": "beit",
        "patch_size": 8,
        "image_size": 40,
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
        "reshape_hidden_states": False,
    },
    "neck_hidden_sizes": [8, 12, 16, 20],
    "fusion_hidden_size": 24,
    "bottleneck_features": 24,
    "num_relative_features": 6,
    "bin_embedding_dim": 16,
    "num_attractors": [4, 3, 2, 1],
    "max_temp": 5.0,
    "min_temp": 0.5,
    "initializer_range": 0.15,
}
_BINS = [{"name": "near", "n_bins": 8, "min_depth": 0.01, "max_depth": 9.0}]
_TWO = {
    "bin_configurations": [*_BINS, {**_BINS[0], "name": "far", "max_depth": 70.0}],
    "num_patch_transformer_layers": 4,
    "patch_transformer_hidden_size": 128,
    "patch_transformer_intermediate_size": 48,
    "patch_transformer_num_attention_heads": 4,
}
_IMAGE_PROCESSOR = {"size": {"height": 48, "width": 64}, "ensure_multiple_of": 16}

RECIPE = replace(
    DPT,
    model_type="zoedepth",
    architectures=("ZoeDepthForDepthEstimation",),
    transforms=(
        Transform(
            name="symbolic_sizes",
            count=lambda config: config.backbone_config.num_hidden_layers,
            parameters={"name": "BeitRelativePositionBias"},
        ),
        Transform(
            name="zoe_depth", count=lambda config: 1 + int(len(config.bin_configurations) > 1)
        ),
    ),
    special="DPT's fusion on states of BEiT, and metric depths of one or two domains as sums of bins.",
    image_processor="ZoeDepthImageProcessor",
    tiny=(
        Tiny(
            config={**_TINY, "bin_configurations": _BINS},
            image_processor=_IMAGE_PROCESSOR,
        ),
        Tiny(name="domains", config={**_TINY, **_TWO}, image_processor=_IMAGE_PROCESSOR),
    ),
)
