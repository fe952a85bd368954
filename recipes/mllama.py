# SPDX-License-Identifier: Apache-2.0
"""Llama 3.2 Vision, `transformers.models.mllama`: layers between those of Llama read an image by cross-attention."""

from dataclasses import replace

from qeff_zoo.multimodal.cross_attention import CrossAttentionImage
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, rms_norm

from .llama import RECIPE as LLAMA

_TEXT_CONFIG = {
    **{name: value for name, value in LLAMA.tiny[0].config.items() if name != "head_dim"},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_hidden_layers": 7,
    "cross_attention_layers": [1, 3, 5],
}
_VISION_CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "vision_output_dim": 192,
    "num_hidden_layers": 3,
    "num_global_layers": 2,
    "intermediate_layers_indices": [0, 1],
    "attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="mllama",
    architectures=("MllamaForConditionalGeneration",),
    task="image-text-to-text",
    special="Gated layers between those of the text read keys and values of all of an image's tiles.",
    transforms=(
        rms_norm(lambda text: 2 * (text.num_hidden_layers + len(text.cross_attention_layers)) + 1),
    ),
    images=CrossAttentionImage(),
    # An image takes as much memory as thousands of tokens.
    shapes={name: replace(shape, max_num_images=1) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(
            config={
                "text_config": _TEXT_CONFIG,
                "vision_config": _VISION_CONFIG,
                "image_token_index": 257,
            },
            image_processor={"image_processor_type": "MllamaImageProcessor", "size": 28},
        ),
    ),
)
