# SPDX-License-Identifier: Apache-2.0
"""Canary, `transformers.models.canary`: canary-1b-v2 of NeMo, speech of 25 languages, written in that or in another.

Unusual: Parakeet's encoder over mel features; how its decoder is to write is in the checkpoint's chat template.
"""

from dataclasses import replace

from qeff_zoo.recipe import Speech, Tiny

from ._tiny_parts import FAST_CONFORMER
from .cohere_asr import RECIPE as COHERE

_DECODER_CONFIG = {
    "vocab_size": 257,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_TINY = {
    "encoder_config": {**FAST_CONFORMER, "scale_input": False},
    "decoder_config": _DECODER_CONFIG,
    "vocab_size": 257,
    "initializer_range": 0.2,
}
_LANGUAGES = "bg cs da de el en es et fi fr hr hu it lt lv mt nl pl pt ro ru sk sl sv uk"

RECIPE = replace(
    COHERE,
    model_type="canary",
    architectures=("CanaryForConditionalGeneration",),
    special="A Fast Conformer over mel features, shortened eight times; a chat template sets language and format.",
    speech=Speech(languages=tuple(_LANGUAGES.split()), translates=True),
    tiny=(Tiny(config=_TINY),),
)
