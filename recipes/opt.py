# SPDX-License-Identifier: Apache-2.0
"""OPT 125M to 66B, Galactica and others of `transformers.models.opt`.

Unusual: learned positions that begin at row 2, ReLU MLPs, biases throughout. The 350M normalizes after each block and
projects its embeddings to the hidden size and back; Galactica has no biases.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

_TINY = {
    "vocab_size": 257,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "init_std": 0.2,
}

RECIPE = Recipe(
    model_type="opt",
    architectures=("OPTForCausalLM", "OPTForSequenceClassification", "OPTModel"),
    task="text-generation",
    special="Learned positions that begin at row 2; norms before or after each block; optional embedding projections.",
    # The published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(config=_TINY),
        Tiny(
            config={**_TINY, "do_layer_norm_before": False, "word_embed_proj_dim": 32}, name="350m"
        ),
        Tiny(
            config={**_TINY, "enable_bias": False, "layer_norm_elementwise_affine": False},
            name="plain",
        ),
    ),
)
