# SPDX-License-Identifier: Apache-2.0
"""Normal noise of PyTorch's seeded generator, by numpy alone, which a few feature extractors add to audio."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK, _BITS = 16, 24  # numbers drawn together, and random bits of each


def noise(count: int, seed: int) -> NDArray[Any]:
    """Return the values of `torch.randn` on a CPU, float32, up to the rounding of a logarithm, a sine and a cosine.

    Args:
        count: Number of values, at least 16.
        seed: Seed of the generator.
    """
    return normal(np.random.RandomState(seed), count)


def normal(random: np.random.RandomState, count: int) -> NDArray[Any]:
    """Return the next values of a generator; see `noise`.

    Args:
        random: State of the generator.
        count: Number of values, at least 16.
    """
    rest = count % BLOCK
    bits = random.randint(0, 1 << 32, count + (BLOCK if rest else 0), np.uint32)
    uniform = ((bits & ((1 << _BITS) - 1)) * 2.0**-_BITS).astype(np.float32)
    whole = count - rest
    values = np.empty(count, np.float32)
    values[:whole] = _normal(uniform[:whole])
    if rest:  # the last block is drawn again, over the end of the previous block
        values[-BLOCK:] = _normal(uniform[count:])
    return values


def _normal(uniform: NDArray[Any]) -> NDArray[Any]:
    """Return normal numbers from pairs of uniform numbers (Box-Muller), half a block apart."""
    first, second = uniform.reshape(-1, 2, BLOCK // 2).swapaxes(0, 1)
    radius, angle = np.sqrt(-2 * np.log(1 - first)), np.float32(2 * np.pi) * second
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)
