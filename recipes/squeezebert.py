# SPDX-License-Identifier: Apache-2.0
"""SqueezeBERT, `transformers.models.squeezebert`: projections are convolutions in groups of channels."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

_GROUPS = {
    **{f"{name}_groups": 2 for name in ("q", "k", "v", "intermediate", "output")},
    "post_attention_groups": 1,
    "embedding_size": 64,
}

RECIPE = replace(
    BERT,
    model_type="squeezebert",
    architectures=(
        "SqueezeBertModel",
        "SqueezeBertForMaskedLM",
        "SqueezeBertForSequenceClassification",
        "SqueezeBertForTokenClassification",
        "SqueezeBertForQuestionAnswering",
        "SqueezeBertForMultipleChoice",
    ),
    special="BERT whose projections are convolutions of one column, most of them in groups of channels.",
    tiny=(Tiny(config={**BERT.tiny[0].config, **_GROUPS}),),
)
