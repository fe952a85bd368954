# SPDX-License-Identifier: Apache-2.0
"""Points of depth maps of any size, for a comparison of equally many values."""

from typing import Any

import numpy as np

from qeff_zoo.validation.trial.points import evenly_spaced

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 15


def values_of(maps: Array) -> Array:
    """Return the values at evenly spaced points of each map; those of a small map repeat.

    Args:
        maps: Depths, (maps, rows, columns).

    Returns:
        (maps, values), the same number for maps of every size.
    """
    flat = maps.reshape(len(maps), -1)
    return flat[:, evenly_spaced(flat.shape[1], _COUNT)]
