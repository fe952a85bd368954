# SPDX-License-Identifier: Apache-2.0
"""The `multiple-choice` contract: a logit for each pair of a prompt and one of its choices.

IN   input_ids, attention_mask, and token_type_ids for models with token types: see
`qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, 1)

ConvBERT and RoFormer score the last token, which is padding in a batch: transformers' scores depend on the batch too.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import MULTIPLE_CHOICE, Tracing, lazy
from qeff_zoo.contract.comparison import UNNAMED_SCORES
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe

from . import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Part of the states that is scored, in ELECTRA's configuration.
_SUMMARY = "first"


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.encoders.classification_tracing import ScoreChoices

    token_types = whole_texts.takes_token_types(model)
    return whole_texts.describe(model, ScoreChoices(model), "logits", token_types=token_types)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    summary = checkpoint.config.get("summary_type", _SUMMARY)
    if summary == _SUMMARY:
        return []
    return [
        f"{checkpoint.name!r} has summary_type {summary!r} in config.json, by which scores depend on padding; expected "
        f"{_SUMMARY!r}, the state of the first token. Use another checkpoint."
    ]


TASK = whole_texts.task_of(
    name=MULTIPLE_CHOICE,
    does="choose among texts",
    guide="question-answering.md",
    noun="MultipleChoice",
    verb="ChooseTexts",
    options=("choice",),
    probe=partial(whole_texts.run_once, choices=1),
    reference="ChoiceReference",
    comparison=UNNAMED_SCORES,
    auto_classes=("AutoModelForMultipleChoice",),
    suffixes=("ForMultipleChoice",),
    tracing=_tracing,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.encoders.multiple_choice_session:MultipleChoiceSession"),
    public=("qeff_zoo.tasks.encoders.multiple_choice_session:MultipleChoiceSession",),
)
