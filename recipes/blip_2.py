# SPDX-License-Identifier: Apache-2.0
"""BLIP-2, `transformers.models.blip_2`: learned queries sum up an image in rows of one number, and OPT reads them.

Unusual: its forward requires an image in every call, so that tokens behind a prompt are its language model's alone;
the image stands before the token that begins the text. Checkpoints with Flan-T5 inside are no decoders, and refused.
"""

from qeff_zoo.multimodal.families.blip_2 import Blip2
from qeff_zoo.recipe import Recipe, Tiny

from ._tiny_parts import VIT_VISION
from .opt import RECIPE as OPT

_QFORMER_CONFIG = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="blip-2",
    architectures=("Blip2ForConditionalGeneration",),
    task="image-text-to-text",
    special="Learned queries sum up an image, and OPT reads their rows before the token that begins a text.",
    images=Blip2(),
    shapes=OPT.shapes,
    tiny=(
        Tiny(
            config={
                "text_config": {**OPT.tiny[0].config, "model_type": "opt"},
                "vision_config": VIT_VISION,
                "qformer_config": _QFORMER_CONFIG,
                "num_query_tokens": 6,
                "image_token_index": 200,
            },
            image_processor={
                "image_processor_type": "BlipImageProcessor",
                "size": {"height": 28, "width": 28},
            },
        ),
    ),
)
