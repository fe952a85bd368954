# SPDX-License-Identifier: Apache-2.0
"""Splitting of long recordings at quiet places, as transformers' feature extractors with a maximum length do."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cut(samples: NDArray[Any], *, most: int, search: int, window: int) -> list[NDArray[Any]]:
    """Split a recording into pieces.

    Args:
        samples: Samples of the recording.
        most: Maximum number of samples in a piece.
        search: Number of samples before the maximum length in which the quietest window is searched.
        window: Number of samples in a window, over which loudness is measured.
    """
    pieces, at = list[NDArray[Any]](), 0
    while at + most < len(samples):
        first = max(at, at + most - search)
        stop = max(at + 1, _quietest(samples[first : at + most], window) + first)
        pieces.append(samples[at:stop])
        at = stop
    return [*pieces, samples[at:]]


def _quietest(samples: NDArray[Any], window: int) -> int:
    """Return the start of the quietest window, or the middle of samples shorter than one window."""
    if len(samples) <= window:
        return len(samples) // 2
    starts = range(0, len(samples) - window, window)
    loudness = [np.sqrt(np.square(samples[at : at + window]).mean()) for at in starts]
    return int(starts[int(np.argmin(loudness))])
