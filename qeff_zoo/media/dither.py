# SPDX-License-Identifier: Apache-2.0
"""Normal noise of PyTorch's seeded generator, by numpy alone, which a few feature extractors add to audio."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK, _BITS = 16, 24  # numbers drawn together, and random bits of each


def noise(count: int, seed: int) -> NDArray[Any]:
    """Return the values of `torch.randn` on a CPU, float32, up to the rounding of a logarithm, a sine and a cosine.

    Args:
        count: Number of values, at least 16.
        seed: Seed of the generator.
    """
    bits = np.random.RandomState(seed).randint(0, 1 << 32, count + _BLOCK, np.uint32)
    uniform = ((bits & ((1 << _BITS) - 1)) * 2.0**-_BITS).astype(np.float32)
    whole = count // _BLOCK * _BLOCK
    found = np.empty(count, np.float32)
    found[:whole] = _normal(uniform[:whole])
    if whole < count:  # the last block is drawn again, over the end of the previous block
        found[-_BLOCK:] = _normal(uniform[count : count + _BLOCK])
    return found


def _normal(uniform: NDArray[Any]) -> NDArray[Any]:
    """Return normal numbers from pairs of uniform numbers (Box-Muller), half a block apart."""
    first, second = uniform.reshape(-1, 2, _BLOCK // 2).swapaxes(0, 1)
    radius, angle = np.sqrt(-2 * np.log(1 - first)), np.float32(2 * np.pi) * second
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)
