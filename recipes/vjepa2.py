# SPDX-License-Identifier: Apache-2.0
"""V-JEPA 2, `transformers.models.vjepa2`: facebook/vjepa2-vitl-fpc16-256-ssv2 and others.

Unusual: rotary positions of time, height and width; an attentive pooler of its own layers reads the patches.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="vjepa2",
    architectures=("VJEPA2ForVideoClassification",),
    task="video-classification",
    special="ViT with rotary positions in three axes, and a pooler of layers; frames of a video, at equal distances.",
    shapes=IMAGE_SHAPES,
    image_processor="VJEPA2VideoProcessor",
    tiny=(
        Tiny(
            config={
                "hidden_size": 64,
                "mlp_ratio": 1.5,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "crop_size": 28,
                "patch_size": 7,
                "frames_per_clip": 6,
                "tubelet_size": 2,
                "num_pooler_layers": 2,
                "pred_hidden_size": 32,
                "pred_num_attention_heads": 2,
                "pred_num_hidden_layers": 2,
                "layer_norm_eps": 1e-3,
                "initializer_range": 0.2,
                "num_labels": 5,
            },
            image_processor={"crop_size": 28},
        ),
    ),
)
