# SPDX-License-Identifier: Apache-2.0
"""Moonshine, `transformers.models.moonshine`: small models of English speech, and of some other languages.

Unusual: reads samples, of as many as there are; three strided convolutions, the first with a norm over all of its
outputs; rotary positions in both halves.
"""

from qeff_zoo.recipe import AUDIO_SEQ2SEQ_SHAPES, Recipe, Tiny, frames

_TINY = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "encoder_num_hidden_layers": 3,
    "decoder_num_hidden_layers": 4,
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), 4),
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 2,
}

RECIPE = Recipe(
    model_type="moonshine",
    architectures=("MoonshineForConditionalGeneration",),
    task="speech-seq2seq",
    special="An encoder of samples of any length, with a norm over all of its first outputs; rotary positions.",
    rev=2,
    transforms=(frames(lambda config: 1),),
    shapes=AUDIO_SEQ2SEQ_SHAPES,
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            config={**_TINY, "hidden_size": 72, "pad_head_dim_to_multiple_of": 8},
            name="padded",
        ),
    ),
)
