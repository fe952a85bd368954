# SPDX-License-Identifier: Apache-2.0
"""A long recording cut where it is quiet, as transformers' feature extractors do that have a longest length."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cut(samples: NDArray[Any], *, most: int, search: int, window: int) -> list[NDArray[Any]]:
    """Cut a recording.

    Args:
        samples: Of it.
        most: Samples of a piece at most.
        search: Before that end, among so many samples the quietest place is looked for.
        window: Samples whose loudness is compared.
    """
    found, at = list[NDArray[Any]](), 0
    while at + most < len(samples):
        first = max(at, at + most - search)
        stop = max(at + 1, _quietest(samples[first : at + most], window) + first)
        found.append(samples[at:stop])
        at = stop
    return [*found, samples[at:]]


def _quietest(samples: NDArray[Any], window: int) -> int:
    """Return where the quietest window begins; the middle of what is shorter than one."""
    if len(samples) <= window:
        return len(samples) // 2
    starts = range(0, len(samples) - window, window)
    loudness = [np.sqrt(np.square(samples[at : at + window]).mean()) for at in starts]
    return int(starts[int(np.argmin(loudness))])
