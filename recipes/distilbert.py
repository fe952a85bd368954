# SPDX-License-Identifier: Apache-2.0
"""DistilBERT, `transformers.models.distilbert`: half of BERT's layers, no token types and no pooler."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="distilbert",
    architectures=(
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
        "DistilBertForTokenClassification",
        "DistilBertForQuestionAnswering",
        "DistilBertForMultipleChoice",
    ),
    special="Plain BERT, without token types.",
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "dim": 64,
                "hidden_dim": 96,
                "n_layers": 4,
                "n_heads": 4,
                "max_position_embeddings": 300,
                "initializer_range": 0.2,
            }
        ),
    ),
)
