# SPDX-License-Identifier: Apache-2.0
"""GPT-Neo 125M to 2.7B and TinyStories, `transformers.models.gpt_neo`.

Unusual: scores are not scaled, and local layers with a window alternate with global ones. Its attention does not go
through transformers' attention interface.
"""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, Transform

RECIPE = Recipe(
    model_type="gpt_neo",
    architectures=("GPTNeoForCausalLM", "GPTNeoForSequenceClassification", "GPTNeoModel"),
    task="text-generation",
    special="Learned positions; attention scores are not scaled; global and local layers in turn.",
    transforms=(Transform(name="gpt_neo_attention", count=lambda config: config.num_layers),),
    # The published checkpoints have 2,048 positions.
    shapes={name: replace(shape, ctx_len=2048) for name, shape in DECODER_SHAPES.items()},
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_layers": 4,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 2]],
                "window_size": 7,
                "max_position_embeddings": 128,
                "layer_norm_epsilon": 1e-2,
                "initializer_range": 0.2,
            },
        ),
    ),
)
