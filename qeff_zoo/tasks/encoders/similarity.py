# SPDX-License-Identifier: Apache-2.0
"""Similarities of embeddings, as in sentence-transformers: the larger, the more alike."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from qeff_zoo.runtime.program import Array


def cosines(embeddings: Array, others: Array | None = None) -> Array:
    """Return the cosine of every embedding with every other.

    Args:
        embeddings: (n, hidden).
        others: (m, hidden); None for `embeddings` themselves.

    Returns:
        float32, (n, m).
    """
    left = normalized(embeddings)
    right = left if others is None else normalized(others)
    products: Array = left @ right.T
    return products


def normalized(embeddings: Array) -> Array:
    """Return embeddings scaled to length 1; zeros stay zeros."""
    lengths = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    scaled: Array = embeddings / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


def _dots(left: Array, right: Array) -> Array:
    products: Array = left @ right.T
    return products


def _distances(order: int, left: Array, right: Array) -> Array:
    """Return the negative distances of every embedding from every other, row by row to bound the memory."""
    rows = [-np.linalg.norm(right - one, order, axis=1) for one in left]
    return np.stack(rows).astype(np.float32, copy=False)


#: Functions of (n, hidden) and (m, hidden) that return (n, m), by their names in sentence-transformers.
SIMILARITIES: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "cosine": cosines,
        "dot": _dots,
        "euclidean": lambda left, right: _distances(2, left, right),
        "manhattan": lambda left, right: _distances(1, left, right),
    }
)
