# SPDX-License-Identifier: Apache-2.0
"""The `token-classification` contract: a score of every label for each token.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders`
OUT  logits (batch_size, seq_len, labels)
"""

from typing import Any

from qeff_zoo.recipe import ENCODER_SHAPES

from . import TOKEN_CLASSIFICATION, Task, Tracing, encoders


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.classification_tracing import Classify

    return encoders.describe(model, Classify(model), "logits")


def _session() -> Any:
    from qeff_zoo.runtime.token_classification import TokenClassificationSession

    return TokenClassificationSession


TASK = Task(
    name=TOKEN_CLASSIFICATION,
    role="encoder",
    answers="scores",
    by_token=True,
    auto_classes=("AutoModelForTokenClassification",),
    suffixes=("ForTokenClassification",),
    shapes=ENCODER_SHAPES,
    probe=encoders.run_once,
    tracing=_tracing,
    specializations=encoders.specializations("Classification"),
    session=_session,
    stages=encoders.stages,
)
