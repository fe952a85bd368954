# SPDX-License-Identifier: Apache-2.0
"""RoBERTa-PreLayerNorm, `transformers.models.roberta_prelayernorm`."""

from dataclasses import replace

from .roberta import RECIPE as ROBERTA

RECIPE = replace(
    ROBERTA,
    model_type="roberta-prelayernorm",
    architectures=(
        "RobertaPreLayerNormModel",
        "RobertaPreLayerNormForMaskedLM",
        "RobertaPreLayerNormForSequenceClassification",
        "RobertaPreLayerNormForTokenClassification",
        "RobertaPreLayerNormForQuestionAnswering",
        "RobertaPreLayerNormForMultipleChoice",
    ),
    special="RoBERTa with norms before each block, and one after the last.",
    tiny=ROBERTA.tiny,
)
