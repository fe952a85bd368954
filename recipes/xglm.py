# SPDX-License-Identifier: Apache-2.0
"""XGLM 564M to 7.5B, `transformers.models.xglm`.

Unusual: sinusoidal positions that begin at row 2, embeddings scaled by sqrt(hidden), biases throughout. Its attention
does not go through transformers' attention interface.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "d_model": 64,
    "ffn_dim": 96,
    "num_layers": 4,
    "attention_heads": 4,
    "max_position_embeddings": 128,
    "init_std": 0.2,
}

RECIPE = Recipe(
    model_type="xglm",
    architectures=("XGLMForCausalLM",),
    task="text-generation",
    special="Sinusoidal positions that begin at row 2; embeddings scaled by sqrt(hidden); biases throughout.",
    # The published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    tiny=(Tiny(config=_TINY),),
)
