# SPDX-License-Identifier: Apache-2.0
"""Points of arrays of any size, for a comparison of equally many values."""

from typing import Any

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.int64]]


def evenly_spaced(size: int, count: int) -> Indices:
    """Return indices into a flat array, (count,), from its first value to its last; those of a small array repeat.

    Args:
        size: Number of the array's values.
        count: Number of indices, at least 2.
    """
    return np.arange(count) * (size - 1) // (count - 1)
