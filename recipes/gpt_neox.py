# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX 20B, Pythia, Dolly 2, RedPajama-INCITE and others, `transformers.models.gpt_neox`.

Unusual: query, key and value are fused head by head, RoPE rotates a quarter of each head, attention and MLP are
parallel with a layer norm each, or one after the other.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "layer_norm_eps": 1e-2,
    "initializer_range": 0.2,
    "rope_parameters": {"rope_theta": 1000.0, "partial_rotary_factor": 0.25},
}

RECIPE = Recipe(
    model_type="gpt_neox",
    architectures=("GPTNeoXForCausalLM", "GPTNeoXForSequenceClassification"),
    task="text-generation",
    special="Fused query-key-value per head; partial RoPE; parallel or sequential residuals.",
    # The published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | {"use_parallel_residual": False}, name="sequential"),
    ),
)
