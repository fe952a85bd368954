# SPDX-License-Identifier: Apache-2.0
"""CLIP, `transformers.models.clip`: openai/clip-vit-base-patch32 and others: images, and texts of them.

Unusual: a ViT with a norm before the layers, projected into the space that texts share.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .vit import RECIPE as VIT

_TEXT_CONFIG = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "eos_token_id": 2,  # the largest id of a text is its end
    "initializer_factor": 3.0,
}
_VISION_CONFIG = {**VIT.tiny[0].config, "initializer_factor": 3.0}

RECIPE = replace(
    VIT,
    model_type="clip",
    architectures=("CLIPModel",),
    special="Two halves into one space: a ViT with a norm before the layers, and causal attention over texts.",
    image_processor="CLIPImageProcessor",
    tiny=(
        Tiny(
            config={
                "text_config": _TEXT_CONFIG,
                "vision_config": _VISION_CONFIG,
                "projection_dim": 40,
            },
            image_processor={"size": 28, "crop_size": 28},
        ),
    ),
)
