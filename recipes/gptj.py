# SPDX-License-Identifier: Apache-2.0
"""GPT-J 6B, `transformers.models.gptj`.

Unusual: attention and MLP in parallel on one layer norm, RoPE on interleaved pairs of a part of each head, from a
table; a head with a bias. Its attention does not go through transformers' attention interface.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Tiny

from .gpt2 import RECIPE as GPT2

_TINY = {**GPT2.tiny[0].config, "rotary_dim": 8, "layer_norm_epsilon": 1e-2}

RECIPE = replace(
    GPT2,
    model_type="gptj",
    architectures=("GPTJForCausalLM", "GPTJForSequenceClassification", "GPTJModel"),
    special="Parallel attention and MLP on one layer norm; partial RoPE on interleaved pairs; a biased head.",
    # The published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    tiny=(Tiny(config=_TINY),),
)
