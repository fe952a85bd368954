# SPDX-License-Identifier: Apache-2.0
"""Gemma 2, `transformers.models.gemma2`.

Unusual: soft-caps on attention scores and on logits, alternating sliding and full layers, norms on both sides of each
block that store weight - 1, attention scaled by `query_pre_attn_scalar`, embeddings scaled by sqrt(hidden).
"""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, rms_norm

RECIPE = Recipe(
    model_type="gemma2",
    architectures=("Gemma2ForCausalLM", "Gemma2ForSequenceClassification", "Gemma2Model"),
    task="text-generation",
    special="Soft-caps on scores and logits; sliding and full layers alternate; norms before and after each block.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1, offset=1.0),),
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
                "query_pre_attn_scalar": 17,
                "max_position_embeddings": 128,
                "sliding_window": 7,
                "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 5.0,
                "initializer_range": 0.2,
            }
        ),
    ),
)
