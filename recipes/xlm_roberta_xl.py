# SPDX-License-Identifier: Apache-2.0
"""XLM-RoBERTa XL and XXL, `transformers.models.xlm_roberta_xl`: norms before each block."""

from dataclasses import replace

from .roberta import RECIPE as ROBERTA

RECIPE = replace(
    ROBERTA,
    model_type="xlm-roberta-xl",
    architectures=(
        "XLMRobertaXLModel",
        "XLMRobertaXLForMaskedLM",
        "XLMRobertaXLForSequenceClassification",
        "XLMRobertaXLForTokenClassification",
        "XLMRobertaXLForQuestionAnswering",
        "XLMRobertaXLForMultipleChoice",
    ),
    special="RoBERTa with norms before each block, and one after the last.",
    tiny=ROBERTA.tiny,
)
