# SPDX-License-Identifier: Apache-2.0
"""BLIP, `transformers.models.blip`: captions of images, and how a caption that was begun goes on.

Unusual: its forward is that of a vision encoder and a decoder in turn, and `generate` is the decoder's: its first and
last tokens are in the decoder's configuration alone.
"""

from qeff_zoo.recipe import CAPTION_SHAPES, Recipe, Tiny

from ._tiny_parts import VIT_VISION

_TEXT_CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "sep_token_id": 2,
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="blip",
    architectures=("BlipForConditionalGeneration",),
    task="image-to-text",
    special="A vision encoder, and a decoder that asks of what it read in every layer, of another width.",
    answer_delimiters=("bos_token_id", "sep_token_id"),
    shapes=CAPTION_SHAPES,
    tiny=(
        Tiny(
            config={"text_config": _TEXT_CONFIG, "vision_config": VIT_VISION},
            image_processor={
                "image_processor_type": "BlipImageProcessor",
                "size": {"height": 28, "width": 28},
            },
        ),
    ),
)
