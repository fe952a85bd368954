# SPDX-License-Identifier: Apache-2.0
"""The `token-classification` contract: a score of every label for each token.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, seq_len, labels)
"""

from typing import Any

from qeff_zoo.recipe import ENCODER_SHAPES
from qeff_zoo.tasks import TOKEN_CLASSIFICATION, Task, Tracing, lazy
from qeff_zoo.tasks.commands import PROMPTS, Commands

from . import whole_texts


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.encoders.classification_tracing import Classify

    return whole_texts.describe(model, Classify(model), "logits")


TASK = Task(
    name=TOKEN_CLASSIFICATION,
    role="encoder",
    answers="scores",
    by_token=True,
    auto_classes=("AutoModelForTokenClassification",),
    suffixes=("ForTokenClassification",),
    shapes=ENCODER_SHAPES,
    probe=whole_texts.run_once,
    tracing=_tracing,
    specializations=whole_texts.specializations("Classification"),
    session=lazy("qeff_zoo.tasks.encoders.token_classification_session:TokenClassificationSession"),
    trial=lazy("qeff_zoo.tasks.encoders.trial:EncoderTrial"),
    reference=lazy("qeff_zoo.tasks.encoders.reference:TextReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.encoders.verbs:ClassifyTokens"),
        run_options=(*PROMPTS, "adapter", "aggregation"),
        serve=lazy("qeff_zoo.serving.services:TextEncoding"),
    ),
    stages=whole_texts.stages,
)
