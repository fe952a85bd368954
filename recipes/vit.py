# SPDX-License-Identifier: Apache-2.0
"""ViT, `transformers.models.vit`: google/vit-base-patch16-224 and others.

Processors of old checkpoints name no class. Only checkpoints that were trained for it have the pooler's weights: of
others, embeddings need `--pooling cls` or `mean`.
"""

from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="vit",
    architectures=("ViTModel", "ViTForImageClassification", "ViTForMaskedImageModeling"),
    task="image-feature-extraction",
    special="Pre-norm encoder of patches with a class token; images of one size, whose positions are learned.",
    shapes=IMAGE_SHAPES,
    image_processor="ViTImageProcessor",
    tiny=(
        Tiny(
            config={
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "image_size": 28,
                "patch_size": 7,
                "initializer_range": 0.2,
            },
            image_processor={"size": 28},
        ),
    ),
)
