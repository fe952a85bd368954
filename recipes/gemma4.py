# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 with pictures, `transformers.models.gemma4`: patches of any picture, nine of which become a row."""

from dataclasses import replace

from qeff_zoo.recipe import Images, Tiny

from .gemma4_text import RECIPE as GEMMA4_TEXT
from .llava import RECIPE as LLAVA
from .paddleocr_vl import VISION

_HEADS = {"num_key_value_heads": 4, "head_dim": 16, "position_embedding_size": 32}
_IDS = ("image_token_id", "boi_token_id", "eoi_token_id", "video_token_id", "audio_token_id")
TOKENS = {name: 200 + place for place, name in enumerate(_IDS)}
BOTH_WAYS = {"use_bidirectional_attention": "vision"}
_BASE, _, _SHARED = ({**tiny.config, "model_type": "gemma4_text"} for tiny in GEMMA4_TEXT.tiny)
_STANDARD, _CLIPPED = (
    {**VISION, **_HEADS, n: True} for n in ("standardize", "use_clipped_linears")
)
_TINY = {**TOKENS, "text_config": {**_BASE, **BOTH_WAYS}, "vision_config": _STANDARD}
_E2B = {**TOKENS, "text_config": _SHARED, "vision_config": _CLIPPED}
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
    tiny=(Tiny(config=_TINY), Tiny(config=_E2B, name="shared")),
)
