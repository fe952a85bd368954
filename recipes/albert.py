# SPDX-License-Identifier: Apache-2.0
"""ALBERT, `transformers.models.albert`.

Unusual: all layers of a group are one layer with the same weights, called again and again; embeddings are narrower than
the layers.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="albert",
    architectures=(
        "AlbertModel",
        "AlbertForMaskedLM",
        "AlbertForPreTraining",
        "AlbertForSequenceClassification",
        "AlbertForTokenClassification",
        "AlbertForQuestionAnswering",
        "AlbertForMultipleChoice",
    ),
    special="Layers of a group share their weights; embeddings are narrower than the layers.",
    tiny=(
        Tiny(config={**BERT.tiny[0].config, "embedding_size": 48}),
        Tiny(
            config={**BERT.tiny[0].config, "embedding_size": 48, "num_hidden_groups": 2},
            name="groups",
        ),
    ),
)
