# SPDX-License-Identifier: Apache-2.0
"""VideoMAE, `transformers.models.videomae`: MCG-NJU/videomae-base-finetuned-kinetics and others.

Unusual: patches reach over two frames; queries and values have biases, keys have none.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="videomae",
    architectures=("VideoMAEForVideoClassification",),
    task="video-classification",
    special="ViT over patches of two frames; 16 frames of a video, at equal distances.",
    shapes=IMAGE_SHAPES,
    image_processor="VideoMAEVideoProcessor",
    tiny=(
        Tiny(
            config={
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "image_size": 28,
                "patch_size": 7,
                "num_frames": 6,
                "tubelet_size": 2,
                "layer_norm_eps": 1e-3,
                "initializer_range": 0.2,
                "num_labels": 5,
            },
            image_processor={"size": {"shortest_edge": 28}, "crop_size": 28},
        ),
    ),
)
