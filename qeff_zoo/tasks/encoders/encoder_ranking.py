# SPDX-License-Identifier: Apache-2.0
"""The `encoder-ranking` contract: the score of a pair of texts, by modules on the token states of an encoder.

IN   input_ids, attention_mask, and token_type_ids for models with token types: see
`qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, labels)     of the last Dense of a CrossEncoder of sentence-transformers

Files of sentence-transformers name the modules: a pooling, and dense layers after it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import ENCODER_RANKING, TEXT_RANKING, Tracing, lazy
from qeff_zoo.contract.comparison import SCORES
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape

from . import text_classification, whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def _tracing(model: Any, **variant: Any) -> Tracing:
    from qeff_zoo.tasks.encoders import pooling

    return pooling.scoring(model, **variant)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    from qeff_zoo.checkpoint.sentence_transformers import modules

    return {"modules": [step.described() for step in modules.read_steps(checkpoint.companions)]}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    from qeff_zoo.checkpoint.sentence_transformers import modules
    from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import read_cross_encoder

    encoder = read_cross_encoder(checkpoint.companions)
    if encoder is None or not encoder.ranks_by_modules:
        return [
            f"{checkpoint.name!r} is to be built for {ENCODER_RANKING!r}, and has no CrossEncoder of "
            "sentence-transformers with a Pooling and a Dense that computes scores. Expected them in modules.json. "
            "Choose another --task."
        ]
    modules.read_steps(checkpoint.companions)
    return text_classification.problems(checkpoint, encoder, "feature-extraction")


TASK = whole_texts.task_of(
    name=ENCODER_RANKING,
    does="rank texts by an encoder and modules",
    guide="embeddings.md",
    noun="Ranking",
    verb="ClassifyTexts",
    options=("pair", "prompt_name"),
    tag=TEXT_RANKING,
    comparison=SCORES,
    auto_classes=("AutoModelForTextEncoding", "AutoModel"),
    suffixes=("Model",),
    on_request=True,
    tracing=_tracing,
    variant=_variant,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.encoders.text_ranking_session:EncoderRankingSession"),
)
