# SPDX-License-Identifier: Apache-2.0
"""ViViT, `transformers.models.vivit`: google/vivit-b-16x2-kinetics400 and others.

Unusual: values of frames lie between -1 and 1 before they are normalized.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="vivit",
    architectures=("VivitForVideoClassification",),
    task="video-classification",
    special="ViT with a class token over patches of two frames; 32 frames of a video, at equal distances.",
    shapes=IMAGE_SHAPES,
    image_processor="VivitVideoProcessor",
    tiny=(
        Tiny(
            config={
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "image_size": 28,
                "tubelet_size": [2, 7, 7],
                "num_frames": 6,
                "layer_norm_eps": 1e-3,
                "initializer_range": 0.2,
                "num_labels": 5,
            },
            image_processor={"size": {"shortest_edge": 32}, "crop_size": 28},
        ),
    ),
)
