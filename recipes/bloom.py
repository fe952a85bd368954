# SPDX-License-Identifier: Apache-2.0
"""BLOOM and BLOOMZ, `transformers.models.bloom`.

Unusual: ALiBi in place of positions, a layer norm on embeddings, query, key and value fused head by head. Its attention
does not go through transformers' attention interface.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "hidden_size": 64,
    "n_layer": 4,
    "n_head": 4,
    "layer_norm_epsilon": 1e-2,
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="bloom",
    architectures=("BloomForCausalLM", "BloomForSequenceClassification", "BloomModel"),
    task="text-generation",
    special="ALiBi; a layer norm on embeddings; fused query-key-value per head; tied head.",
    # The published checkpoints were trained on 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            config=_TINY
            | {"apply_residual_connection_post_layernorm": True, "n_head": 6, "hidden_size": 96},
            name="post_layernorm",
        ),
    ),
)
