# SPDX-License-Identifier: Apache-2.0
"""CamemBERT, `transformers.models.camembert`: a French RoBERTa."""

from dataclasses import replace

from .roberta import RECIPE as ROBERTA

RECIPE = replace(
    ROBERTA,
    model_type="camembert",
    architectures=(
        "CamembertModel",
        "CamembertForMaskedLM",
        "CamembertForSequenceClassification",
        "CamembertForTokenClassification",
        "CamembertForQuestionAnswering",
        "CamembertForMultipleChoice",
    ),
    special="Plain RoBERTa, trained on French.",
    tiny=ROBERTA.tiny,
)
