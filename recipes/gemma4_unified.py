# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 Unified, `transformers.models.gemma4_unified`: no encoders: a patch of 48 pixels or 640 samples is a row."""

from dataclasses import replace

from qeff_zoo.multimodal.families.gemma4 import Gemma4
from qeff_zoo.multimodal.families.gemma4_unified_audio import Gemma4UnifiedAudio
from qeff_zoo.recipe import Tiny

from ._tiny_parts import GEMMA4_TOKENS
from .gemma4 import RECIPE as GEMMA4
from .gemma4_unified_text import RECIPE as GEMMA4_UNIFIED_TEXT

_TINY = {
    **GEMMA4_TOKENS,
    "audio_config": {"audio_embed_dim": 24},
    "text_config": {
        **GEMMA4_UNIFIED_TEXT.tiny[0].config,
        "model_type": "gemma4_unified_text",
        "use_bidirectional_attention": "vision",
    },
    "vision_config": {
        "patch_size": 2,
        "mm_embed_dim": 64,
        "mm_posemb_size": 32,
        "output_proj_dims": 64,
    },
}

RECIPE = replace(
    GEMMA4,
    model_type="gemma4_unified",
    architectures=("Gemma4UnifiedForConditionalGeneration",),
    special="No encoders: large patches become rows by one matrix and two tables of positions, samples by another.",
    images=Gemma4(merged=True),
    audio=Gemma4UnifiedAudio(
        mask="input_features_mask",
        embedded=True,
        before=("boa_token_id",),
        after=("eoa_token_index",),
    ),
    tiny=(Tiny(config=_TINY),),
)
