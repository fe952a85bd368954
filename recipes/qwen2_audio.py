# SPDX-License-Identifier: Apache-2.0
"""Qwen2-Audio, `transformers.models.qwen2_audio`: Whisper's encoder, pooled by two, one matrix, and Qwen2."""

from qeff_zoo.multimodal.families.audio_windows import AudioWindows
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

from ._tiny_parts import WHISPER_AUDIO
from .qwen2 import RECIPE as QWEN2

RECIPE = Recipe(
    model_type="qwen2_audio",
    architectures=("Qwen2AudioForConditionalGeneration",),
    task="audio-text-to-text",
    special="One window of 30 seconds of audio at most, 25 rows a second, in place of placeholder tokens.",
    audio=AudioWindows(mask="feature_attention_mask", windows=1),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "text_config": {**QWEN2.tiny[0].config, "model_type": "qwen2"},
                "audio_config": WHISPER_AUDIO,
                "audio_token_id": 200,
            }
        ),
    ),
)
