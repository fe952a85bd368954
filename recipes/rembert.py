# SPDX-License-Identifier: Apache-2.0
"""RemBERT, `transformers.models.rembert`: narrow input embeddings, apart from the output ones."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="rembert",
    architectures=(
        "RemBertModel",
        "RemBertForMaskedLM",
        "RemBertForSequenceClassification",
        "RemBertForTokenClassification",
        "RemBertForQuestionAnswering",
        "RemBertForMultipleChoice",
    ),
    special="BERT whose input embeddings are narrower than its layers.",
    tiny=(Tiny(config={**BERT.tiny[0].config, "input_embedding_size": 48}),),
)
