# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 with pictures, `transformers.models.gemma4`: patches of any picture, nine of which become a row."""

from dataclasses import replace

from qeff_zoo.recipe import Images, Tiny

from .gemma4_text import RECIPE as GEMMA4_TEXT
from .llava import RECIPE as LLAVA
from .paddleocr_vl import VISION

_HEADS = {"num_key_value_heads": 4, "head_dim": 16, "position_embedding_size": 32}
_TOKENS = {"image_token_id": 200, "boi_token_id": 201, "eoi_token_id": 202}
TOKENS = {**_TOKENS, "video_token_id": 203, "audio_token_id": 204}
BOTH_WAYS = {"use_bidirectional_attention": "vision"}
_BASE, _, _SHARED = ({**tiny.config, "model_type": "gemma4_text"} for tiny in GEMMA4_TEXT.tiny)

IMAGES = Images(
    patches=True,
    positions="image_position_ids",
    types="mm_token_type_ids",
    whole="image",
    before=("boi_token_id",),
    after=("eoi_token_id",),
)

RECIPE = replace(
    LLAVA,
    model_type="gemma4",
    architectures=("Gemma4ForConditionalGeneration",),
    special="Patches of pictures of any size; in sliding layers of some models tokens of a picture see one another.",
    images=IMAGES,
    tiny=(
        Tiny(
            config={
                **TOKENS,
                "text_config": {**_BASE, **BOTH_WAYS},
                "vision_config": {**VISION, **_HEADS, "standardize": True},
            }
        ),
        Tiny(
            config={
                **TOKENS,
                "text_config": _SHARED,
                "vision_config": {**VISION, **_HEADS, "use_clipped_linears": True},
            },
            name="shared",
        ),
    ),
)
