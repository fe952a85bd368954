# SPDX-License-Identifier: Apache-2.0
"""The `text-ranking` contract: the score of a pair of texts, from a language model's logits at the last token.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, 1)     logit of a token, minus that of another one

Files of sentence-transformers name the two tokens (module LogitScore), and the chat template that writes a pair.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import TEXT_GENERATION, TEXT_RANKING, Tracing, lazy
from qeff_zoo.contract.comparison import SCORES
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape

from . import text_classification, whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def _tracing(model: Any, *, true: int, false: int | None) -> Tracing:
    from qeff_zoo.tasks.encoders.classification_tracing import ScoreTokens

    return whole_texts.describe(model, ScoreTokens(model, true, false), "logits")


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import read_cross_encoder

    encoder = read_cross_encoder(checkpoint.companions)
    assert encoder, "refused by `_problems`"
    return {"true": encoder.tokens.true, "false": encoder.tokens.false}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import read_cross_encoder

    encoder = read_cross_encoder(checkpoint.companions)
    if encoder is None or not encoder.ranks_by_tokens:
        return [
            f"{checkpoint.name!r} is to be built for {TEXT_RANKING!r}, and has no LogitScore of sentence-transformers "
            "that names the tokens of its score. Expected one in modules.json. Save the model with "
            "sentence-transformers, whose CrossEncoder adds it."
        ]
    return text_classification.problems(checkpoint, encoder, TEXT_GENERATION)


TASK = whole_texts.task_of(
    name=TEXT_RANKING,
    does="rank texts by a language model",
    guide="embeddings.md",
    noun="Ranking",
    verb="ClassifyTexts",
    options=("pair", "prompt_name"),
    comparison=SCORES,
    auto_classes=("AutoModelForCausalLM",),
    suffixes=(),
    head_of=TEXT_GENERATION,
    tracing=_tracing,
    variant=_variant,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.encoders.text_ranking_session:TextRankingSession"),
)
