# SPDX-License-Identifier: Apache-2.0
"""CTRL of Salesforce, `transformers.models.ctrl`: sinusoidal positions, embeddings scaled by sqrt(hidden)."""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="ctrl",
    architectures=("CTRLLMHeadModel", "CTRLForSequenceClassification"),
    task="text-generation",
    special="Pre-norm decoder with sinusoidal positions (256 in the published model) and scaled embeddings.",
    # The published checkpoint has 256 positions.
    shapes={name: replace(shape, ctx_len=256) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "n_embd": 64,
                "dff": 96,
                "n_layer": 4,
                "n_head": 4,
                "n_positions": 128,
                "layer_norm_epsilon": 1e-2,
                "initializer_range": 0.2,
            },
        ),
    ),
)
