# SPDX-License-Identifier: Apache-2.0
"""LLaVA 1.5 and its relatives, `transformers.models.llava`: a vision encoder, two matrices, and any language model."""

from qeff_zoo.multimodal.families.pixtral import Pixtral
from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

from ._tiny_parts import CLIP_VISION
from .llama import RECIPE as LLAMA

RECIPE = Recipe(
    model_type="llava",
    architectures=("LlavaForConditionalGeneration",),
    task="image-text-to-text",
    special="Features of one size of image, through two matrices, in place of placeholder tokens.",
    images=Images(),
    # Images of any size, each line of which ends with a token, as of Mistral 3, but no patches are merged.
    vision_encoders={"pixtral": Pixtral(merge=1)},
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "text_config": {**LLAMA.tiny[0].config, "model_type": "llama"},
                "vision_config": CLIP_VISION,
                "image_token_index": 200,
            }
        ),
    ),
)
