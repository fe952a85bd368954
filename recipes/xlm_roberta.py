# SPDX-License-Identifier: Apache-2.0
"""XLM-RoBERTa, multilingual E5, BGE-M3 and other checkpoints of `transformers.models.xlm_roberta`."""

from dataclasses import replace

from .roberta import RECIPE as ROBERTA

RECIPE = replace(
    ROBERTA,
    model_type="xlm-roberta",
    architectures=(
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "XLMRobertaForQuestionAnswering",
        "XLMRobertaForMultipleChoice",
    ),
    special="Plain RoBERTa, trained on a hundred languages.",
    tiny=ROBERTA.tiny,
)
