# SPDX-License-Identifier: Apache-2.0
"""Ettin decoders and others of `transformers.models.modernbert_decoder`: ModernBERT trained as a causal decoder.

Unusual: a full layer, then some sliding ones, each kind with its RoPE base; layer norms without biases; the first layer
takes the normalized embeddings as they are.
"""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="modernbert-decoder",
    architectures=("ModernBertDecoderForCausalLM", "ModernBertDecoderForSequenceClassification"),
    task="text-generation",
    special="Layer norms; sliding and full layers, each with its RoPE base; a dense layer and a norm before the head.",
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 5,
                "num_attention_heads": 4,
                "max_position_embeddings": 128,
                "local_attention": 14,
                "initializer_range": 0.2,
                "norm_eps": 1e-2,
                "layer_types": [
                    "full_attention",
                    *["sliding_attention", "full_attention"] * 2,
                ],
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                    "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
                },
                "pad_token_id": 0,
            }
        ),
    ),
)
