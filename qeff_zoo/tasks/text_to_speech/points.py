# SPDX-License-Identifier: Apache-2.0
"""Points of arrays of any size, for a comparison of equally many values; without torch and the runtime."""

from typing import Any

import numpy as np

from qeff_zoo.validation.trial.points import evenly_spaced

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 14


def row_of(values: Array) -> Array:
    """Return the values at evenly spaced points of an array, float32 (values,); those of a small one repeat."""
    flat = values.reshape(-1)
    return flat[evenly_spaced(flat.size, _COUNT)].astype(np.float32)


def resized(noise: Array, count: int) -> Array:
    """Return noise of a number of frames, (count, width); frames beyond the given ones repeat them."""
    return noise[np.arange(count) % len(noise)]
