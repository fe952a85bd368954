# SPDX-License-Identifier: Apache-2.0
"""Voxtral, `transformers.models.voxtral`: Whisper's encoder, four of its states to a row, two matrices, and Llama."""

from qeff_zoo.multimodal.families.voxtral import VoxtralAudio
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

from .llama import RECIPE as LLAMA

_AUDIO_CONFIG = {
    "num_mel_bins": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "hidden_size": 32,
    "max_source_positions": 20,
    "initializer_range": 0.2,
}
_BEGIN_AUDIO = 25  # [BEGIN_AUDIO], which Mistral's tokenizer writes and no config names

RECIPE = Recipe(
    model_type="voxtral",
    architectures=("VoxtralForConditionalGeneration",),
    task="audio-text-to-text",
    special="Audio in whole windows of 30 seconds, 375 rows each, silence included; one scale for a whole recording.",
    audio=VoxtralAudio(before=(_BEGIN_AUDIO,)),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "text_config": {**LLAMA.tiny[0].config, "model_type": "llama"},
                "audio_config": _AUDIO_CONFIG,
                "audio_token_id": 24,
            }
        ),
    ),
)
