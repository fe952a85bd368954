# SPDX-License-Identifier: Apache-2.0
"""Qwen3-ASR, `transformers.models.qwen3_asr`: convolutions over seconds, an encoder of windows of eight, and Qwen3."""

from qeff_zoo.multimodal.families.audio_stream import AudioStream
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

from .qwen3 import RECIPE as QWEN3

_TEXT_CONFIG = {**QWEN3.tiny[0].config, "model_type": "qwen3"}
_AUDIO_CONFIG = {
    "num_mel_bins": 8,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "d_model": 32,
    "n_window": 50,
    "n_window_infer": 200,
    "downsample_hidden_size": 6,
    "output_dim": _TEXT_CONFIG["hidden_size"],
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="qwen3_asr",
    architectures=("Qwen3ASRForConditionalGeneration",),
    task="audio-text-to-text",
    special="Audio of any length, 13 rows a second, in independent windows of 8 seconds.",
    transforms=QWEN3.transforms,
    audio=AudioStream(mask="input_features_mask", window="n_window_infer"),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "text_config": _TEXT_CONFIG,
                "audio_config": _AUDIO_CONFIG,
                "audio_token_id": 200,
            }
        ),
    ),
)
