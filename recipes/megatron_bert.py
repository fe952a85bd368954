# SPDX-License-Identifier: Apache-2.0
"""Megatron-BERT, `transformers.models.megatron_bert`: norms before each block."""

from dataclasses import replace

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="megatron-bert",
    architectures=(
        "MegatronBertModel",
        "MegatronBertForMaskedLM",
        "MegatronBertForPreTraining",
        "MegatronBertForSequenceClassification",
        "MegatronBertForTokenClassification",
        "MegatronBertForQuestionAnswering",
        "MegatronBertForMultipleChoice",
    ),
    special="BERT with norms before each block, and one after the last.",
    tiny=BERT.tiny,
)
