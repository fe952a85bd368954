# SPDX-License-Identifier: Apache-2.0
"""BERT encoders as sentence embeddings, `transformers.models.bert`: all-MiniLM, BGE, GTE, E5 and others.

How token states become one embedding is not in the config but in the sentence-transformers files beside it.
"""

from qeff_zoo.recipe import ENCODER_SHAPES, Recipe, Tiny

RECIPE = Recipe(
    model_type="bert",
    architectures=(
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForSequenceClassification",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
        "BertForMultipleChoice",
    ),
    task="feature-extraction",
    special="Post-norm encoder with learned positions; mean, cls or max pooling as sentence-transformers' files say.",
    shapes=ENCODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "max_position_embeddings": 300,
                "initializer_range": 0.2,
            }
        ),
    ),
)
