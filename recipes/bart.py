# SPDX-License-Identifier: Apache-2.0
"""BART, `transformers.models.bart`: summaries (bart-large-cnn, distilbart) and text to text.

Unusual: learned positions that begin at 2; an answer begins with the token that ends texts.
"""

from qeff_zoo.recipe import SEQ2SEQ_SHAPES, Recipe, Tiny, row_positions

_TINY = {
    "vocab_size": 257,
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 4,
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    "init_std": 0.2,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

RECIPE = Recipe(
    model_type="bart",
    architectures=("BartForConditionalGeneration",),
    task="text2text-generation",
    special="Learned positions that begin at 2; a norm over the embeddings, and after each block.",
    transforms=(row_positions(),),
    shapes=SEQ2SEQ_SHAPES,
    tiny=(Tiny(config=_TINY), Tiny(config={**_TINY, "scale_embedding": True}, name="scaled")),
)
