# SPDX-License-Identifier: Apache-2.0
"""Normal noise of PyTorch's CPU generator, by numpy alone: a seed gives the image that it gives in diffusers."""

import math

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.dither import BLOCK, normal
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray

_WORD, _BITS = (
    32,
    53,
)  # bits of a word of the generator, and random bits of a number in double precision


class NoiseGenerator:
    """Standard normal noise, as `torch.randn(shape, generator=torch.Generator().manual_seed(seed))` returns it.

    Equal to torch's values up to the last bits of its vectorized logarithm, sine and cosine. Successive calls continue
    the sequence, as they do with one generator of torch.

    Args:
        seed: Seed; as in torch, its lower 32 bits count.

    Raises:
        GenerationError: The seed has more than 64 bits.
    """

    def __init__(self, seed: int) -> None:
        if type(seed) is not int or not -(1 << 63) <= seed < 1 << 64:
            raise GenerationError(
                f"Cannot use the seed {seed!r}: expected an integer of at most 64 bits. Change it."
            )
        self._random = np.random.RandomState(seed & ((1 << _WORD) - 1))
        self._spare: float | None = None

    def __call__(self, shape: tuple[int, ...]) -> FloatArray:
        """Return the next values, float32."""
        count = math.prod(shape)
        if count >= BLOCK:
            return normal(self._random, count).reshape(shape)
        return np.array([self._next() for _ in range(count)], np.float32).reshape(shape)

    def _next(self) -> float:
        """Return one value, in double precision; values come in pairs, and the second is kept for the next one."""
        if self._spare is not None:
            value, self._spare = self._spare, None
            return value
        angle, radius = 2 * math.pi * self._uniform(), math.sqrt(-2 * math.log1p(-self._uniform()))
        self._spare = radius * math.sin(angle)
        return radius * math.cos(angle)

    def _uniform(self) -> float:
        high, low = map(int, self._random.randint(0, 1 << _WORD, 2, np.uint32))
        return ((high << _WORD | low) & ((1 << _BITS) - 1)) * 2.0**-_BITS
