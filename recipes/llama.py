# SPDX-License-Identifier: Apache-2.0
"""Llama 2 and 3, Vicuna, CodeLlama, TinyLlama and other checkpoints of `transformers.models.llama`.

The plain pre-norm decoder that most others are compared with: nothing is unusual but the scalings of RoPE.
"""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, rms_norm

RECIPE = Recipe(
    model_type="llama",
    architectures=("LlamaForCausalLM", "LlamaForSequenceClassification", "LlamaModel"),
    task="text-generation",
    special="Pre-norm decoder with grouped-query attention; RoPE of every scaling type.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1),),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 24,
                "max_position_embeddings": 128,
                "initializer_range": 0.2,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 1000.0,
                    "factor": 4.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            }
        ),
    ),
)
