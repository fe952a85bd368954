# SPDX-License-Identifier: Apache-2.0
"""ELECTRA discriminators and generators, `transformers.models.electra`."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="electra",
    architectures=(
        "ElectraModel",
        "ElectraForPreTraining",
        "ElectraForMaskedLM",
        "ElectraForSequenceClassification",
        "ElectraForTokenClassification",
        "ElectraForQuestionAnswering",
        "ElectraForMultipleChoice",
    ),
    special="BERT whose embeddings may be narrower than its layers.",
    tiny=(Tiny(config={**BERT.tiny[0].config, "embedding_size": 48}),),
)
