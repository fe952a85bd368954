# SPDX-License-Identifier: Apache-2.0
"""Static embeddings, `qeff_zoo.export.architectures.static_embedding`: model2vec's potion, static-retrieval-mrl-en-v1.

Their checkpoints have a module StaticEmbedding in place of config.json;
`qeff_zoo.checkpoint.static_embedding` writes it.
"""

from qeff_zoo.recipe import ENCODER_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="static_embedding",
    architectures=("StaticEmbeddingModel",),
    task="feature-extraction",
    special="Plain vectors of tokens, without layers; the mean over a text without special tokens.",
    shapes=ENCODER_SHAPES,
    detected_by=("static_vectors",),
    tiny=(Tiny(config={"vocab_size": 257, "hidden_size": 48}),),
)
