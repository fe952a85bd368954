# SPDX-License-Identifier: Apache-2.0
"""GIT, `transformers.models.git`: captions of images, and answers to questions that a caption begins with.

Unusual: image features precede the text in every layer, attend to themselves alone, and have no tokens in their places;
positions of tokens begin behind it at 0.
"""

from qeff_zoo.recipe import CAPTION_SHAPES, Recipe, Tiny

from ._tiny_parts import VIT_VISION

_TINY = {
    "vision_config": VIT_VISION,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 257,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
_IMAGE_PROCESSOR = {"image_processor_type": "CLIPImageProcessor", "size": 28, "crop_size": 28}

RECIPE = Recipe(
    model_type="git",
    architectures=("GitForCausalLM",),
    task="image-to-text",
    special="Image features precede the text in every layer, attend to themselves alone, and have no positions.",
    shapes=CAPTION_SHAPES,
    tiny=(Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),),
)
