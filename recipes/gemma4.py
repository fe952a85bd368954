# SPDX-License-Identifier: Apache-2.0
"""Gemma 4, `transformers.models.gemma4`: patches of any image, nine of which become a row; audio in chunks for some."""

from dataclasses import replace

from qeff_zoo.multimodal.families.audio_chunks import AudioChunks
from qeff_zoo.multimodal.families.gemma4 import Gemma4
from qeff_zoo.recipe import Tiny

from ._tiny_parts import GEMMA4_TOKENS, PATCH_VISION
from .gemma4_text import RECIPE as GEMMA4_TEXT
from .llava import RECIPE as LLAVA

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
_COMMON = {**GEMMA4_TOKENS, "audio_config": _AUDIO_CONFIG}
_VISION_CONFIG = {
    **PATCH_VISION,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "position_embedding_size": 32,
}
_TEXT_CONFIG = {
    **GEMMA4_TEXT.tiny[0].config,
    "model_type": "gemma4_text",
    "use_bidirectional_attention": "vision",
}

RECIPE = replace(
    LLAVA,
    model_type="gemma4",
    architectures=("Gemma4ForConditionalGeneration",),
    special="Patches of images of any size, bidirectional in sliding layers; or audio in chunks.",
    images=Gemma4(),
    audio=AudioChunks(
        mask="input_features_mask",
        chunk="attention_chunk_size",
        embedded=True,
        before=("boa_token_id",),
        after=("eoa_token_index",),
    ),
    compile_flags=GEMMA4_TEXT.compile_flags,
    tiny=(
        Tiny(
            config={
                **_COMMON,
                "text_config": _TEXT_CONFIG,
                "vision_config": {**_VISION_CONFIG, "standardize": True},
            }
        ),
        Tiny(
            config={
                **_COMMON,
                "text_config": {**GEMMA4_TEXT.tiny[2].config, "model_type": "gemma4_text"},
                "vision_config": {**_VISION_CONFIG, "use_clipped_linears": True},
            },
            name="shared",
        ),
    ),
)
