# SPDX-License-Identifier: Apache-2.0
"""Cohere Transcribe, `transformers.models.cohere_asr`: speech of 14 languages, selected in the request.

Unusual: Parakeet's encoder over mel features, and a decoder of half its depth whose language and format ten tokens set.
"""

from dataclasses import replace

from qeff_zoo.recipe import AudioShape, Recipe, Speech, Tiny

from ._tiny_parts import FAST_CONFORMER

_TINY = {
    "encoder_config": {**FAST_CONFORMER, "convolution_bias": True, "hidden_size": 48},
    "vocab_size": 257,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
#: As its processor has them, of a text with punctuation.
_PROMPT_TOKENS = (
    "\N{LOWER ONE EIGHTH BLOCK}",
    "<|startofcontext|>",
    "<|startoftranscript|>",
    "<|emo:undefined|>",
    "<|{source}|>",
    "<|{target}|>",
    "<|pnc|>",
    "<|noitn|>",
    "<|notimestamp|>",
    "<|nodiarize|>",
)
_LANGUAGES = ("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh")
_SHAPE = AudioShape(prefill_seq_len=8, ctx_len=512, seq_lens=(3500,), inputs_per_row=8)

RECIPE = Recipe(
    model_type="cohere_asr",
    architectures=("CohereAsrForConditionalGeneration",),
    task="speech-seq2seq",
    special="A Fast Conformer over mel features, shortened eight times; a decoder with learned positions.",
    shapes={  # lengths in frames of 10 ms
        "latency": replace(_SHAPE, seq_lens=(500, 1500, 3500)),
        "throughput": replace(_SHAPE, full_batch_size=8),
    },
    speech=Speech(begins=_PROMPT_TOKENS, languages=_LANGUAGES),
    tiny=(Tiny(config=_TINY),),
)
