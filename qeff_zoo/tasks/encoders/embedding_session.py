# SPDX-License-Identifier: Apache-2.0
"""Session of an embedding package: texts in, one vector per text out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.texts import Text
from qeff_zoo.tasks import FEATURE_EXTRACTION
from qeff_zoo.tasks.encoders.session import EncoderSession


def cosines(embeddings: Array, others: Array | None = None) -> Array:
    """Return the cosine of every embedding with every other.

    Args:
        embeddings: (n, hidden).
        others: (m, hidden); None for `embeddings` themselves.

    Returns:
        float32, (n, m).
    """
    left = _normalized(embeddings)
    right = left if others is None else _normalized(others)
    found: Array = left @ right.T
    return found


def _normalized(embeddings: Array) -> Array:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    scaled: Array = embeddings / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


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

    def embed(self, texts: str | Sequence[Text], *, adapter: str | None = None) -> Array:
        """Compute one embedding per text.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
            adapter: Name of one of `adapters`; None for the base model.

        Returns:
            float32, (texts, hidden).

        Raises:
            GenerationError: A list of token ids is empty, too long, or outside the vocabulary; or the package has no
                pooling.
        """
        self.require_pooling()
        encoded = self.read([texts] if isinstance(texts, str) else texts)
        return np.stack(self._answer(encoded, adapter))

    similarity = staticmethod(cosines)
