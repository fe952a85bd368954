# SPDX-License-Identifier: Apache-2.0
"""GLPN, `transformers.models.glpn`: vinvino02/glpn-nyu, vinvino02/glpn-kitti.

Unusual: a pyramid of overlapping patches, whose keys and values a convolution reduces; no positions but those of a
depthwise convolution; batch norm in the decoder. The depth is a sigmoid scaled by `max_depth`.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

_TINY = {
    "depths": [1, 2, 1, 1],
    "hidden_sizes": [16, 24, 32, 40],
    "num_attention_heads": [1, 2, 4, 5],
    "mlp_ratios": [2, 3, 2, 2],
    "decoder_hidden_size": 20,
    "max_depth": 7,
    "layer_norm_eps": 1e-3,
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="glpn",
    architectures=("GLPNForDepthEstimation",),
    task="depth-estimation",
    special="Pyramid of overlapping patches with reduced keys and values, fused to a metric map of depths.",
    shapes=IMAGE_SHAPES,
    image_processor="GLPNImageProcessor",
    tiny=(Tiny(config=_TINY, image_processor={"size_divisor": 32}),),
)
