# SPDX-License-Identifier: Apache-2.0
"""The `sparse-embedding` contract (SPLADE): a weight for each token of the vocabulary, most of them 0.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders.whole_texts`
OUT  output (batch_size, vocab_size)    logits of a masked language model, pooled over the tokens of a text

Files of sentence-transformers name the pooling (module SpladePooling); without them it is that of a `SparseEncoder`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import FEATURE_EXTRACTION, MASKED_LM, SPARSE_EMBEDDING, Tracing, lazy
from qeff_zoo.contract.comparison import EMBEDDINGS
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape

from . import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint
    from qeff_zoo.checkpoint.sentence_transformers.sparse_encoder import SparseEncoder


def _tracing(model: Any, *, strategy: str, activation: str) -> Tracing:
    from qeff_zoo.tasks.encoders.splade_tracing import EmbedSparsely

    return whole_texts.describe(model, EmbedSparsely(model, strategy, activation), "output")


def _encoder(checkpoint: "Checkpoint") -> "SparseEncoder":
    from qeff_zoo.checkpoint.sentence_transformers import sparse_encoder

    encoder = sparse_encoder.read_sparse_encoder(checkpoint.companions)
    return encoder or sparse_encoder.SparseEncoder()


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return asdict(_encoder(checkpoint).pooling)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    from qeff_zoo.checkpoint.sentence_transformers import files, settings

    problems = [f"{checkpoint.name!r}: {problem}." for problem in _encoder(checkpoint).problems()]
    if request.pooling is not None or request.normalize is not None:
        problems.append(
            f"{checkpoint.name!r} has sparse embeddings, whose pooling is that of its SparseEncoder; --pooling and "
            "--normalize are for others. Leave them out."
        )
    read = files.reader_of(checkpoint.companions)
    return problems + settings.problems_of(checkpoint.name, read, "logits", kind=settings.SPARSE)


TASK = whole_texts.task_of(
    name=SPARSE_EMBEDDING,
    does="embed texts sparsely",
    guide="embeddings.md",
    noun="Embedding",
    verb="EmbedSparsely",
    options=("prompt_name", "prompt_prefix"),
    tag=FEATURE_EXTRACTION,
    comparison=EMBEDDINGS,
    auto_classes=("AutoModelForMaskedLM",),
    suffixes=(MASKED_LM,),
    on_request=True,
    tracing=_tracing,
    variant=_variant,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.encoders.sparse_embedding_session:SparseEmbeddingSession"),
    public=(
        "qeff_zoo.tasks.encoders.sparse_embedding_session:SparseEmbedding",
        "qeff_zoo.tasks.encoders.sparse_embedding_session:SparseEmbeddingSession",
    ),
)
