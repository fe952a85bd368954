# SPDX-License-Identifier: Apache-2.0
"""Whisper and Distil-Whisper, `transformers.models.whisper`: speech in, text in its language or in English out.

Unusual: windows of 30 seconds, whatever their content; text and times are tokens of one vocabulary.
"""

from qeff_zoo.recipe import WINDOW_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 4,
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "num_mel_bins": 16,
    "max_source_positions": 50,
    "max_target_positions": 64,
    "init_std": 0.2,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 2),
    "decoder_start_token_id": 3,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}

RECIPE = Recipe(
    model_type="whisper",
    architectures=("WhisperForConditionalGeneration",),
    task="speech-seq2seq",
    special="An encoder of windows of 30 seconds of audio; a decoder of text and times in one vocabulary.",
    shapes=WINDOW_SHAPES,
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            config={**_TINY, "encoder_layers": 5, "decoder_layers": 2, "scale_embedding": True},
            name="distilled",
        ),
    ),
)
