# SPDX-License-Identifier: Apache-2.0
"""Session of an embedding package: texts in, one vector per text out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.sentence_transformers.settings import DOCUMENT, QUERY
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.texts import Text
from qeff_zoo.tasks import FEATURE_EXTRACTION
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

    def states(self, texts: str | Sequence[Text], *, adapter: str | None = None) -> list[Array]:
        """Return the last hidden states of each text, for a package without pooling.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
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
        encoded = self.read([texts] if isinstance(texts, str) else texts)
        found = self._answer(encoded, adapter)
        return [states[: len(one.ids)] for states, one in zip(found, encoded, strict=True)]

    def require_pooling(self) -> None:
        """Raise `GenerationError` if the package has no pooling."""
        if self.has_states:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no pooling, and returns a state for each token; expected one with a "
                "pooling. Build it with --pooling mean or another, or call `states`."
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
        return self._embed(texts, None, prompt, prompt_name, dimensions, normalize, adapter)

    def embed_query(self, texts: str | Sequence[Text], **options: Any) -> Array:
        """Embed queries, by the prompt "query" if no other is given, as `encode_query`; see `embed`."""
        return self._embed_kind(QUERY, texts, **options)

    def embed_document(self, texts: str | Sequence[Text], **options: Any) -> Array:
        """Embed documents, by the prompt "document" if no other is given, as `encode_document`; see `embed`."""
        return self._embed_kind(DOCUMENT, texts, **options)

    def similarity(self, embeddings: Array, others: Array | None = None) -> Array:
        """Return the similarity of every embedding with every other, by the function of the model.

        Args:
            embeddings: (n, hidden).
            others: (m, hidden); None for `embeddings` themselves.

        Returns:
            float32, (n, m): cosines, dot products or negative distances, see `settings.similarity`.
        """
        function = SIMILARITIES[self.settings.similarity]
        return function(embeddings, embeddings if others is None else others)

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

    def _embed_kind(
        self,
        kind: str,
        texts: str | Sequence[Text],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        normalize: bool = False,
        adapter: str | None = None,
    ) -> Array:
        if prompt is None and prompt_name is None:
            prompt_name = self.settings.prompt_of(kind)
        return self._embed(texts, kind, prompt, prompt_name, dimensions, normalize, adapter)

    def _embed(
        self,
        texts: str | Sequence[Text],
        kind: str | None,
        prompt: str | None,
        prompt_name: str | None,
        dimensions: int | None,
        normalize: bool,
        adapter: str | None,
    ) -> Array:
        self.require_pooling()
        encoded = self.read(
            [texts] if isinstance(texts, str) else texts,
            self.settings.length_of(kind),
            prompt=self.settings.prompt(prompt, prompt_name),
        )
        found = self.shortened(np.stack(self._answer(encoded, adapter)), dimensions)
        return normalized(found) if normalize else found
