# SPDX-License-Identifier: Apache-2.0
"""MPNet, `transformers.models.mpnet`: all-mpnet-base, multi-qa-mpnet and others.

Unusual: RoBERTa's positions, and a bias on the scores by relative distance that all layers share.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="mpnet",
    architectures=(
        "MPNetModel",
        "MPNetForMaskedLM",
        "MPNetForSequenceClassification",
        "MPNetForTokenClassification",
        "MPNetForQuestionAnswering",
        "MPNetForMultipleChoice",
    ),
    special="RoBERTa's positions, and a bias on the scores by distance that all layers share.",
    positions_after_padding=True,
    tiny=(Tiny(config={**BERT.tiny[0].config, "type_vocab_size": 1}),),
)
