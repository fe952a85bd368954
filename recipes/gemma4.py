# SPDX-License-Identifier: Apache-2.0
"""Gemma 4, `transformers.models.gemma4`: patches of any picture, nine of which become a row; some hear, in chunks."""

from dataclasses import replace

from qeff_zoo.multimodal.families.audio_chunks import AudioChunks
from qeff_zoo.multimodal.families.gemma4 import Gemma4
from qeff_zoo.recipe import Tiny

from .gemma4_text import RECIPE as GEMMA4_TEXT
from .llava import RECIPE as LLAVA
from .paddleocr_vl import VISION

_IDS = ("image_token_id", "boi_token_id", "eoi_token_id", "video_token_id", "audio_token_id")
TOKENS = {name: 200 + place for place, name in enumerate(_IDS)}
BOTH_WAYS = {"use_bidirectional_attention": "vision"}
_AUDIO_CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [8, 4],
    "conv_kernel_size": 3,
    "attention_chunk_size": 3,
    "attention_context_left": 5,
    "attention_logit_cap": 5.0,
    "output_proj_dims": 48,
    "initializer_range": 0.3,
}
_BASE, _, _SHARED = ({**tiny.config, "model_type": "gemma4_text"} for tiny in GEMMA4_TEXT.tiny)
_VISION_CONFIG = VISION | {"num_key_value_heads": 4, "head_dim": 16, "position_embedding_size": 32}
_HEARS = TOKENS | {"boa_token_id": 205, "eoa_token_index": 206, "audio_config": _AUDIO_CONFIG}
_TINY = {"text_config": _BASE | BOTH_WAYS, "vision_config": {**_VISION_CONFIG, "standardize": True}}
_E2B = {"text_config": _SHARED, "vision_config": {**_VISION_CONFIG, "use_clipped_linears": True}}
IMAGES = Gemma4()
AUDIO = AudioChunks(
    mask="input_features_mask",
    chunk="attention_chunk_size",
    embedded=True,
    before=("boa_token_id",),
    after=("eoa_token_index",),
)

RECIPE = replace(
    LLAVA,
    model_type="gemma4",
    architectures=("Gemma4ForConditionalGeneration",),
    special="Patches of pictures of any size, whose tokens may see one another in sliding layers; or sound in chunks.",
    images=IMAGES,
    sounds=AUDIO,
    compile_flags=GEMMA4_TEXT.compile_flags,
    tiny=(Tiny(config=_HEARS | _TINY), Tiny(config=_HEARS | _E2B, name="shared")),
)
