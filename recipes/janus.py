# SPDX-License-Identifier: Apache-2.0
"""Janus-Pro, `transformers.models.janus`: it reads images as LLaVA does; what draws them is left out."""

from dataclasses import replace

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IDEFICS3_VISION
from .llava import RECIPE as LLAVA

_VQ_CONFIG = {
    "embed_dim": 4,
    "num_embeddings": 16,
    "latent_channels": 8,
    "num_patches": 4,
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "projection_dim": 64,
    "image_token_embed_dim": 64,
}

RECIPE = replace(
    LLAVA,
    model_type="janus",
    architectures=("JanusForConditionalGeneration",),
    special="Features of one size of image; the half that draws images is left out.",
    images=Images(before=("<begin_of_image>",), after=("<end_of_image>",)),
    tiny=(
        Tiny(
            config={
                "text_config": LLAVA.tiny[0].config["text_config"],
                "vision_config": {**IDEFICS3_VISION, "projection_dim": 64, "num_image_tokens": 16},
                "vq_config": _VQ_CONFIG,
                "image_token_id": 200,
            }
        ),
    ),
)
