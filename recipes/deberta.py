# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v1, `transformers.models.deberta`: disentangled attention over distances, without buckets."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

RECIPE = replace(
    BERT,
    model_type="deberta",
    architectures=(
        "DebertaModel",
        "DebertaForMaskedLM",
        "DebertaForSequenceClassification",
        "DebertaForTokenClassification",
        "DebertaForQuestionAnswering",
    ),
    special="Disentangled attention over distances that are clipped, not bucketed; biases on queries and values only.",
    tiny=(
        Tiny(
            config={
                **BERT.tiny[0].config,
                "relative_attention": True,
                "max_relative_positions": 9,
                "pos_att_type": "c2p|p2c",
                "position_biased_input": False,
                "type_vocab_size": 0,
            }
        ),
    ),
)
