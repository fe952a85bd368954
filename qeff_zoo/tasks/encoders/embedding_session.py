# SPDX-License-Identifier: Apache-2.0
"""Session of an embedding package: texts in, one vector per text out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.sentence_transformers.settings import DOCUMENT, QUERY
from qeff_zoo.contract import FEATURE_EXTRACTION
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.text.late_interaction import LateInteraction, max_similarities
from qeff_zoo.runtime.text.texts import Text, Texts
from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.tasks.encoders.session import EncoderSession
from qeff_zoo.tasks.encoders.similarity import SIMILARITIES, normalized


class EmbeddingSession(EncoderSession):
    """An opened package of the task `feature-extraction`; see `EncoderSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> session.similarity(session.embed(["a cat", "a kitten"]))  # doctest: +SKIP
    """

    task = FEATURE_EXTRACTION
    output = "output"

    def __init__(self, folder: Path, program: Program) -> None:
        super().__init__(folder, program)
        self.has_states = len(program.outputs[self.output].shape) == 3
        spec = read_json(folder / "manifest.json").get("spec") or {}
        #: Whether the program scales embeddings to length 1.
        self.normalizes = bool((spec.get("task") or {}).get("normalize"))
        self._late = (
            LateInteraction.of_package(folder, self.settings, self.tokenizer)
            if self.tokenizer
            else None
        )
        late = self._late
        self.masks_expansion = late is not None and late.length > 0 and not late.attends

    def states(
        self,
        texts: str | Sequence[Text],
        *,
        kind: str | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        adapter: str | None = None,
    ) -> list[Array]:
        """Return an embedding for each token of each text, for a package without pooling.

        They are the last hidden states, or for late interaction those of the tokens that are compared, as
        `encode_query` and `encode_document` of a `MultiVectorEncoder` return them.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
            kind: Kind of the texts, "query" or "document", whose prompt precedes them; None for neither.
            prompt: Text that precedes every text; None for that of `prompt_name`.
            prompt_name: Name of one of `settings.prompts`; None for that of the kind.
            adapter: Name of one of `adapters`; None for the base model.

        Returns:
            float32, (tokens, hidden), for each text.

        Raises:
            GenerationError: If the package pools; or as for `embed`.
        """
        if not self.has_states:
            raise GenerationError(
                f"Package {str(self.folder)!r} pools the states of tokens; expected one without pooling. Build it with "
                "--pooling none, or call `embed`."
            )
        encoded = self.read_as(texts, kind, prompt=prompt, prompt_name=prompt_name)
        states = self._answer(encoded, adapter)
        return [self.compared(*each, kind) for each in zip(encoded, states, strict=True)]

    def read(
        self,
        texts: Sequence[Texts],
        max_length: int | None = None,
        *args: Any,
        kind: str | None = None,
        **options: Any,
    ) -> list[Encoded]:
        """Tokenize texts, with the expansion of queries for late interaction; see the base class.

        Args:
            texts: Texts, or token ids.
            max_length: Number of tokens to which texts are truncated.
            *args: See the base class.
            kind: Kind of the texts, "query" or "document"; None for neither.
            **options: See the base class.
        """
        late = self._late
        if late is None:
            return super().read(texts, max_length, *args, **options)
        most = late.max_length(kind, max_length or self.max_length)
        encoded = super().read(texts, most, *args, **options)
        return [late.expanded(encoding, kind) for encoding in encoded]

    def compared(self, text: Encoded, states: Array, kind: str | None = None) -> Array:
        """Return the states of the tokens of a text that late interaction compares, (tokens, hidden).

        Args:
            text: The text.
            states: States of its tokens and of padding.
            kind: Kind of the text, "query" or "document"; None for neither.
        """
        if self._late is None:
            return states[: len(text.ids)]
        compared: Array = states[self._late.places(text, kind)]
        return compared

    def comparable(self, text: Encoded, output: Array, kind: str | None) -> Array | list[Array]:
        """Return the embedding of one text as `similarity` takes it, or the states of its compared tokens.

        Args:
            text: The text.
            output: Output of the program for it.
            kind: Kind of the text, "query" or "document"; None for neither.
        """
        if self.has_states:
            return [self.compared(text, output, kind)]
        return self.shortened(output[None])

    def require_pooling(self) -> None:
        """Raise `GenerationError` if the package has no pooling."""
        if self.has_states:
            build = "" if self._late else "Build it with --pooling mean or another, or call"
            raise GenerationError(
                f"Package {str(self.folder)!r} has no pooling, and returns a state for each token; expected one with a "
                f"pooling. {build or 'Call'} `states`."
            )

    def embed(
        self,
        texts: str | Sequence[Text],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        normalize: bool = False,
        adapter: str | None = None,
    ) -> Array:
        """Compute one embedding per text, as `encode` of sentence-transformers.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
            prompt: Text that precedes every text, "" for none; None for that of `prompt_name`.
            prompt_name: Name of one of `settings.prompts`; None for the model's default prompt, if it has one.
            dimensions: Number of the first values that are returned; None for the model's number.
            normalize: Whether each embedding is scaled to length 1, after that.
            adapter: Name of one of `adapters`; None for the base model.

        Returns:
            float32, (texts, hidden).

        Raises:
            GenerationError: A list of token ids is empty, too long, or outside the vocabulary; the package has no
                pooling; no prompt has the name; or embeddings have fewer dimensions.
        """
        return self._embed(
            texts,
            prompt=prompt,
            prompt_name=prompt_name,
            dimensions=dimensions,
            normalize=normalize,
            adapter=adapter,
        )

    def embed_query(self, texts: str | Sequence[Text], **options: Any) -> Array:
        """Embed queries, by the prompt "query" if no other is given, as `encode_query`; see `embed`."""
        return self._embed(texts, QUERY, **options)

    def embed_document(self, texts: str | Sequence[Text], **options: Any) -> Array:
        """Embed documents, by the prompt "document" if no other is given, as `encode_document`; see `embed`."""
        return self._embed(texts, DOCUMENT, **options)

    def similarity(
        self, embeddings: Array | Sequence[Array], others: Array | Sequence[Array] | None = None
    ) -> Array:
        """Return the similarity of every embedding with every other, by the function of the model.

        Args:
            embeddings: (n, hidden); for a package without pooling (tokens, hidden) of each query.
            others: (m, hidden), or (tokens, hidden) of each document; None for `embeddings` themselves.

        Returns:
            float32, (n, m): cosines, dot products or negative distances, see `settings.similarity`; without pooling for
            each token of a query the cosine of the nearest token, summed.
        """
        if self.has_states:
            pairs = (embeddings, embeddings if others is None else others)
            left, right = ([*map(self._comparable, each)] for each in pairs)
            return max_similarities(left, right)
        assert isinstance(embeddings, np.ndarray)
        assert others is None or isinstance(others, np.ndarray)
        function = SIMILARITIES[self.settings.similarity]
        return function(embeddings, embeddings if others is None else others)

    def _comparable(self, states: Array) -> Array:
        """Return states as late interaction multiplies them: as the modules return them, else of length 1."""
        return states if self._late else normalized(states)

    def shortened(self, embeddings: Array, dimensions: int | None = None) -> Array:
        """Return the first values of embeddings, of the model's number if none is given.

        Raises:
            GenerationError: Embeddings have fewer dimensions.
        """
        size = min(embeddings.shape[1], self.settings.truncate_dim or embeddings.shape[1])
        if dimensions is not None and not 1 <= dimensions <= size:
            raise GenerationError(
                f"`dimensions` is {dimensions:,}; expected 1 to {size:,}, the dimensions of the model. Change it."
            )
        return embeddings[:, : dimensions or size]

    def _embed(
        self,
        texts: str | Sequence[Text],
        kind: str | None = None,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        normalize: bool = False,
        adapter: str | None = None,
    ) -> Array:
        self.require_pooling()
        encoded = self.read_as(texts, kind, prompt=prompt, prompt_name=prompt_name)
        embeddings = self.shortened(np.stack(self._answer(encoded, adapter)), dimensions)
        return normalized(embeddings) if normalize else embeddings
