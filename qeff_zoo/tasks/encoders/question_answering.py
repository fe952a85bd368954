# SPDX-License-Identifier: Apache-2.0
"""The `question-answering` contract: for each token, the logits of an answer's start and of its end.

IN   input_ids, attention_mask, and token_type_ids for models with token types: see
`qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, seq_len, 2)
"""

from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import QUESTION_ANSWERING, Tracing, lazy
from qeff_zoo.contract.comparison import UNNAMED_SCORES
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe

from . import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Values of the head for each token.
_VALUES = 2


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.encoders.classification_tracing import ScoreSpans

    token_types = whole_texts.takes_token_types(model)
    return whole_texts.describe(model, ScoreSpans(model), "logits", token_types=token_types)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    names = checkpoint.config.get("id2label")
    count = len(names) if names else checkpoint.config.get("num_labels", _VALUES)
    if count == _VALUES:
        return []
    return [
        f"{checkpoint.name!r} has {count} labels in config.json; expected {_VALUES} for {QUESTION_ANSWERING}, those of "
        "the start and of the end. Use a checkpoint that was trained for it."
    ]


TASK = whole_texts.task_of(
    name=QUESTION_ANSWERING,
    does="find answers in texts",
    guide="question-answering.md",
    noun="QuestionAnswering",
    verb="AnswerQuestions",
    options=(
        *("question", "context", "context_file", "top_k"),
        *("doc_stride", "max_answer_len", "impossible"),
    ),
    reference="SpanReference",
    comparison=UNNAMED_SCORES,
    by_token=True,
    auto_classes=("AutoModelForQuestionAnswering",),
    suffixes=("ForQuestionAnswering",),
    tracing=_tracing,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.encoders.question_answering_session:QuestionAnsweringSession"),
    public=(
        "qeff_zoo.tasks.encoders.question_answering_session:ExtractedAnswer",
        "qeff_zoo.tasks.encoders.question_answering_session:QuestionAnsweringSession",
    ),
)
