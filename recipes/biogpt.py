# SPDX-License-Identifier: Apache-2.0
"""BioGPT, `transformers.models.biogpt`: OPT's layers, learned positions from 2 on, scaled embeddings."""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="biogpt",
    architectures=("BioGptForCausalLM", "BioGptForSequenceClassification"),
    task="text-generation",
    special="Pre-norm decoder with learned positions, offset by 2, scaled embeddings and a tied head.",
    # The published checkpoints have 1,024 positions.
    shapes={name: replace(shape, ctx_len=1024) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "max_position_embeddings": 128,
                "layer_norm_eps": 1e-2,
                "initializer_range": 0.2,
            },
        ),
    ),
)
