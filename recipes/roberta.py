# SPDX-License-Identifier: Apache-2.0
"""RoBERTa and its fine-tunes, `transformers.models.roberta`: positions begin after the padding id."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="roberta",
    architectures=(
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
        "RobertaForQuestionAnswering",
        "RobertaForMultipleChoice",
    ),
    special="BERT whose positions begin after the padding id, and count the tokens that are not padding.",
    positions_after_padding=True,
    tiny=(Tiny(config={**BERT.tiny[0].config, "pad_token_id": 5, "type_vocab_size": 1}),),
)
