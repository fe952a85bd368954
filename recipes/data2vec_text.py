# SPDX-License-Identifier: Apache-2.0
"""Data2Vec for text, `transformers.models.data2vec`: RoBERTa, trained differently."""

from dataclasses import replace

from .roberta import RECIPE as ROBERTA

RECIPE = replace(
    ROBERTA,
    model_type="data2vec-text",
    architectures=(
        "Data2VecTextModel",
        "Data2VecTextForMaskedLM",
        "Data2VecTextForSequenceClassification",
        "Data2VecTextForTokenClassification",
        "Data2VecTextForQuestionAnswering",
        "Data2VecTextForMultipleChoice",
    ),
    special="Plain RoBERTa, trained differently.",
    tiny=ROBERTA.tiny,
)
