# SPDX-License-Identifier: Apache-2.0
"""Session of a package with sparse embeddings: texts in, weights of the vocabulary's tokens out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.sentence_transformers.settings import DOCUMENT, QUERY
from qeff_zoo.contract import SPARSE_EMBEDDING
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.texts import Text
from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.tasks.encoders.session import EncoderSession
from qeff_zoo.tasks.encoders.similarity import SIMILARITIES


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseEmbedding:
    """Weights of the vocabulary's tokens other than 0, as vector databases take them.

    Args:
        indices: Token ids, ascending.
        values: Weight of each, float32.
        size: Number of the vocabulary's tokens.
    """

    indices: Array = field(repr=False)
    values: Array = field(repr=False)
    size: int

    @classmethod
    def of(cls, weights: Array, limit: int | None = None) -> "SparseEmbedding":
        """Return the weights other than 0 of a whole vocabulary.

        Args:
            weights: Weight of each token, (vocab_size,).
            limit: Number of the largest weights that count; None for all.
        """
        indices = np.flatnonzero(weights)
        if limit is not None and len(indices) > limit:
            best = np.argsort(-np.abs(weights[indices]), kind="stable")[:limit]
            indices = np.sort(indices[best])
        return cls(indices=indices, values=weights[indices], size=len(weights))

    def dense(self) -> Array:
        """Return the weight of every token of the vocabulary, (vocab_size,)."""
        weights = np.zeros(self.size, np.float32)
        weights[self.indices] = self.values
        return weights


class SparseEmbeddingSession(EncoderSession):
    """An opened package of the task `sparse-embedding`; see `EncoderSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/splade")  # doctest: +SKIP
        >>> session.weights(session.embed("a cat")[0], 3)  # doctest: +SKIP
        {'cat': 2.31, 'cats': 1.62, 'animal': 1.2}
    """

    task = SPARSE_EMBEDDING
    output = "output"
    similarity_name = "dot"

    def embed(
        self,
        texts: str | Sequence[Text],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        adapter: str | None = None,
    ) -> list[SparseEmbedding]:
        """Compute one sparse embedding per text, as `encode` of a `SparseEncoder` of sentence-transformers.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
            prompt: Text that precedes every text, "" for none; None for that of `prompt_name`.
            prompt_name: Name of one of `settings.prompts`; None for the model's default prompt, if it has one.
            max_active_dims: Number of the largest weights that are returned; None for the model's number.
            adapter: Name of one of `adapters`; None for the base model.

        Raises:
            GenerationError: A list of token ids is empty, too long, or outside the vocabulary; no prompt has the name;
                or the number of weights is below 1.
        """
        return self._embed(
            texts,
            prompt=prompt,
            prompt_name=prompt_name,
            max_active_dims=max_active_dims,
            adapter=adapter,
        )

    def embed_query(self, texts: str | Sequence[Text], **options: Any) -> list[SparseEmbedding]:
        """Embed queries, by the prompt "query" if no other is given, as `encode_query`; see `embed`."""
        return self._embed(texts, QUERY, **options)

    def embed_document(self, texts: str | Sequence[Text], **options: Any) -> list[SparseEmbedding]:
        """Embed documents, by the prompt "document" if no other is given, as `encode_document`; see `embed`."""
        return self._embed(texts, DOCUMENT, **options)

    def weights(self, embedding: SparseEmbedding, limit: int | None = None) -> dict[str, float]:
        """Return the weights of an embedding by token, the largest first, as `decode` of a `SparseEncoder`.

        Args:
            embedding: The embedding.
            limit: Number of the largest weights that are returned; None for all.

        Raises:
            GenerationError: The package has no tokenizer.
        """
        if self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json that names the tokens; expected one. Use the "
                "token ids in `indices`."
            )
        order = np.argsort(-embedding.values, kind="stable")[:limit]
        names = self.tokenizer.name
        tokens = (names(int(one)) or f"[{one}]" for one in embedding.indices[order])
        return dict(zip(tokens, embedding.values[order].tolist(), strict=True))

    def similarity(
        self,
        embeddings: Sequence[SparseEmbedding],
        others: Sequence[SparseEmbedding] | None = None,
    ) -> Array:
        """Return the similarity of every embedding with every other, by the function of the model.

        Args:
            embeddings: n embeddings.
            others: m embeddings; None for `embeddings` themselves.

        Returns:
            float32, (n, m): dot products if the model sets no other function, see `settings.similarity`.
        """
        others = embeddings if others is None else others
        used = np.unique(np.concatenate([one.indices for one in (*embeddings, *others)]))
        left, right = (_columns(each, used) for each in (embeddings, others))
        return SIMILARITIES[self.settings.similarity](left, right)

    def comparable(self, text: Encoded, output: Array, kind: str | None) -> list[SparseEmbedding]:
        """Return the embedding of one text as `similarity` takes it.

        Args:
            text: The text.
            output: Output of the program for it.
            kind: Kind of the text, without effect.
        """
        return [self.active(output)]

    def active(self, output: Array, max_active_dims: int | None = None) -> SparseEmbedding:
        """Return the embedding that the program's output for a text has.

        Args:
            output: Weights of the whole vocabulary.
            max_active_dims: Number of the largest weights that are returned; None for the model's number.
        """
        return SparseEmbedding.of(output, max_active_dims or self.settings.max_active_dims)

    def _embed(
        self,
        texts: str | Sequence[Text],
        kind: str | None = None,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        adapter: str | None = None,
    ) -> list[SparseEmbedding]:
        if max_active_dims is not None and max_active_dims < 1:
            raise GenerationError(
                f"`max_active_dims` is {max_active_dims:,}; expected 1 at least. Change it."
            )
        encoded = self.read_as(texts, kind, prompt=prompt, prompt_name=prompt_name)
        return [self.active(one, max_active_dims) for one in self._answer(encoded, adapter)]


def _columns(embeddings: Sequence[SparseEmbedding], used: Array) -> Array:
    """Return the weights of the used tokens alone, (embeddings, tokens)."""
    columns = np.zeros((len(embeddings), len(used)), np.float32)
    for row, embedding in zip(columns, embeddings, strict=True):
        row[np.searchsorted(used, embedding.indices)] = embedding.values
    return columns
