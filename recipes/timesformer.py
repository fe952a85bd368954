# SPDX-License-Identifier: Apache-2.0
"""TimeSformer, `transformers.models.timesformer`: facebook/timesformer-base-finetuned-k400 and others.

Unusual: each layer attends over time, then over space, with a class token that the frames share.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
    "num_frames": 5,
    "layer_norm_eps": 1e-3,
    "initializer_range": 0.2,
    "num_labels": 5,
}

RECIPE = Recipe(
    model_type="timesformer",
    architectures=("TimesformerForVideoClassification",),
    task="video-classification",
    special="ViT whose layers attend over time and space in turn; 8 frames of a video, at equal distances.",
    shapes=IMAGE_SHAPES,
    image_processor="TimesformerVideoProcessor",
    tiny=tuple(
        Tiny(
            name=name,
            config={**_TINY, "attention_type": kind},
            image_processor={"size": {"shortest_edge": 28}, "crop_size": 28},
        )
        for name, kind in (("base", "divided_space_time"), ("joint", "joint_space_time"))
    ),
)
