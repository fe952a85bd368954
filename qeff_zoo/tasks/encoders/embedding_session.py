# SPDX-License-Identifier: Apache-2.0
"""Session of an embedding package: texts in, one vector per text out."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.runtime.program import Array
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

    def embed(self, texts: str | Sequence[Text], *, adapter: str | None = None) -> Array:
        """Compute one embedding per text.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
            adapter: Name of one of `adapters`; None for the base model.

        Returns:
            float32, (texts, hidden).

        Raises:
            GenerationError: A list of token ids is empty, too long, or outside the vocabulary.
        """
        encoded = self.read([texts] if isinstance(texts, str) else texts)
        return np.stack(self._answer(encoded, adapter))

    similarity = staticmethod(cosines)
