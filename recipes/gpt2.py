# SPDX-License-Identifier: Apache-2.0
"""GPT-2 and GPT-SW3, `transformers.models.gpt2`: learned positions, layer norms, weights stored input-major."""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_inner": 96,
    "n_positions": 128,
    "initializer_range": 0.2,
}

RECIPE = Recipe(
    model_type="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2ForSequenceClassification"),
    task="text-generation",
    special="Learned positions (1,024 in the published models); attention may be scaled by the layer's index.",
    # The published checkpoints have 1,024 positions, so a longer cache has no use.
    shapes={name: replace(shape, ctx_len=1024) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(config=_TINY),
        Tiny(config={**_TINY, "scale_attn_by_inverse_layer_idx": True}, name="inverse_layer_idx"),
    ),
)
