# SPDX-License-Identifier: Apache-2.0
"""YOLOS, `transformers.models.yolos`: hustvl/yolos-tiny, hustvl/yolos-small, hustvl/yolos-base and others.

Unusual: a ViT whose last tokens are queries of objects; positions are interpolated to the size of the image, before the
first layer and, in some checkpoints, after each.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": [48, 80],
    "patch_size": 8,
    "layer_norm_eps": 1e-3,
    "num_detection_tokens": 7,
    "initializer_range": 0.2,
    "id2label": {"0": "N/A", "1": "person", "2": "cat", "3": "remote"},
}
_IMAGE_PROCESSOR = {"size": {"shortest_edge": 48, "longest_edge": 96}}

RECIPE = Recipe(
    model_type="yolos",
    architectures=("YolosForObjectDetection",),
    task="object-detection",
    special="ViT with tokens for objects, each with logits of labels and a box; images of any size.",
    shapes=IMAGE_SHAPES,
    image_processor="YolosImageProcessor",
    tiny=(
        Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            name="first",
            config={**_TINY, "use_mid_position_embeddings": False},
            image_processor=_IMAGE_PROCESSOR,
        ),
    ),
)
