# SPDX-License-Identifier: Apache-2.0
"""The `text-classification` contract: a score of every label for each text, or pair of texts.

IN   input_ids, attention_mask, and token_type_ids of models that have them: see `qeff_zoo.tasks.encoders`
OUT  logits (batch_size, labels)

Decoders pool the last token that is not padding, by its id: what fills a row must be `pad_token_id`.
"""

from typing import TYPE_CHECKING, Any

from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import ENCODER_SHAPES, Recipe

from . import TEXT_CLASSIFICATION, Task, Tracing, encoders, find

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.classification_tracing import Classify

    token_types = encoders.takes_token_types(model)
    return encoders.describe(model, Classify(model), "logits", token_types=token_types)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    decodes = find(recipe.task).role == "decoder"
    if not decodes or checkpoint.config.get("pad_token_id") is not None:
        return []
    return [
        f"{checkpoint.name!r} has no pad_token_id in config.json, and a decoder classifies by the last token that "
        f"is not padding. Expected one; set it to the id that its tokenizer pads with."
    ]


def _session() -> Any:
    from qeff_zoo.runtime.text_classification import TextClassificationSession

    return TextClassificationSession


TASK = Task(
    name=TEXT_CLASSIFICATION,
    role="encoder",
    answers="scores",
    auto_classes=("AutoModelForSequenceClassification",),
    suffixes=("ForSequenceClassification",),
    shapes=ENCODER_SHAPES,
    probe=encoders.run_once,
    tracing=_tracing,
    specializations=encoders.specializations("Classification"),
    problems=_problems,
    session=_session,
    stages=encoders.stages,
    vllm_task="classify",
)
