# SPDX-License-Identifier: Apache-2.0
"""The `token-classification` contract: a score of every label for each token.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, seq_len, labels)
"""

from typing import Any

from qeff_zoo.contract import TOKEN_CLASSIFICATION, Tracing, lazy
from qeff_zoo.contract.comparison import SCORES

from . import whole_texts


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.encoders.classification_tracing import Classify

    return whole_texts.describe(model, Classify(model), "logits")


TASK = whole_texts.task_of(
    name=TOKEN_CLASSIFICATION,
    does="classify tokens",
    guide="embeddings.md",
    noun="Classification",
    verb="ClassifyTokens",
    options=("aggregation",),
    comparison=SCORES,
    by_token=True,
    auto_classes=("AutoModelForTokenClassification",),
    suffixes=("ForTokenClassification",),
    tracing=_tracing,
    session=lazy("qeff_zoo.tasks.encoders.token_classification_session:TokenClassificationSession"),
    public=(
        "qeff_zoo.tasks.encoders.entities:Entity",
        "qeff_zoo.tasks.encoders.token_classification_session:TokenClassificationSession",
        "qeff_zoo.tasks.encoders.token_classification_session:TokenLabel",
    ),
)
