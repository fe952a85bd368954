# SPDX-License-Identifier: Apache-2.0
"""Noise of a seed, beside torch's CPU generator."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.noise import NoiseGenerator

#: Largest difference measured over 8 million values: 4.8e-7, two units in the last place of a value above 2. torch
#: computes the logarithm, the sine and the cosine of 16 values and more in its own vectorized code.
TOLERANCE = 1e-6


def compare(seed: int, shapes: list[tuple[int, ...]]) -> None:
    """Compare successive draws of one generator."""
    ours, reference = NoiseGenerator(seed), torch.Generator().manual_seed(seed)
    for shape in shapes:
        values, expected = ours(shape), torch.randn(shape, generator=reference).numpy()
        assert values.dtype == np.float32
        assert values.shape == expected.shape
        if math.prod(shape) < 16:  # computed in double precision
            assert np.array_equal(values, expected)
        assert np.abs(values - expected).max(initial=0) <= TOLERANCE


@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    shapes=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple), max_size=5),
)
@settings(max_examples=50, deadline=None)
def test_a_seed_gives_torch_s_noise(seed: int, shapes: list[tuple[int, ...]]) -> None:
    compare(seed, shapes)


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, 2**32, 2**63, -1, -(2**63), 2**64 - 1])
def test_edges_of_seeds(seed: int) -> None:
    compare(seed, [(1,), (16,), (15,), (17,), (3,), (4, 4)])


@pytest.mark.parametrize("shape", [(1, 4, 64, 64), (2, 16, 33, 35), (1, 16, 3, 30, 52)])
def test_latents_of_published_sizes(shape: tuple[int, ...]) -> None:
    compare(1234, [shape, shape])


def test_another_seed_gives_another_image() -> None:
    assert not np.allclose(NoiseGenerator(1)((64,)), NoiseGenerator(2)((64,)))


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 1.0, True, "1", None])
def test_a_wrong_seed_is_refused(seed: Any) -> None:
    with pytest.raises(GenerationError, match="an integer of at most 64 bits"):
        NoiseGenerator(seed)
