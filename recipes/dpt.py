# SPDX-License-Identifier: Apache-2.0
"""DPT, `transformers.models.dpt`: Intel/dpt-large, Intel/dpt-hybrid-midas and others.

Unusual: states of several layers become maps of several resolutions, which are fused from the coarsest on. Positions
are interpolated to the size of the image.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

from .dinov2 import RECIPE as DINOV2

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "image_size": 48,
    "patch_size": 8,
    "layer_norm_eps": 1e-3,
    "neck_hidden_sizes": [8, 12, 16, 20],
    "fusion_hidden_size": 24,
    "is_hybrid": False,
    "initializer_range": 0.2,
}
_BACKBONE = {
    **DINOV2.tiny[0].config,
    "model_type": "dinov2",
    "patch_size": 8,
    "image_size": 40,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "reshape_hidden_states": False,
}

RECIPE = Recipe(
    model_type="dpt",
    architectures=("DPTForDepthEstimation",),
    task="depth-estimation",
    special="ViT whose layers become maps of several resolutions, fused to a map of depths.",
    shapes=IMAGE_SHAPES,
    image_processor="DPTImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor={"size": 48}),
        Tiny(
            name="backbone",
            config={**_TINY, "backbone_config": _BACKBONE, "readout_type": "add"},
            image_processor={"do_resize": False, "do_pad": True, "size_divisor": 8},
        ),
    ),
)
