# SPDX-License-Identifier: Apache-2.0
"""Pixio, `transformers.models.pixio`: facebook/pixio-huge and others, masked autoencoders.

Unusual: several class tokens, whose mean is the embedding of the image.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .dinov2 import RECIPE as DINOV2

RECIPE = replace(
    DINOV2,
    model_type="pixio",
    architectures=("PixioModel",),
    special="DINOv2 without layer scale; the embedding is the mean of several class tokens.",
    tiny=(
        Tiny(
            config={
                "hidden_size": 64,
                "mlp_ratio": 2,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "n_cls_tokens": 3,
                "layer_norm_eps": 0.01,
                "image_size": 42,
                "patch_size": 7,
                "initializer_range": 0.2,
            },
            image_processor=DINOV2.tiny[0].image_processor,
        ),
    ),
)
