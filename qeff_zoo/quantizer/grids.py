# SPDX-License-Identifier: Apache-2.0
"""Matrices as integers in groups of columns that share a scale, and the scales that suit them.

    value[n, k] = (integer[n, k] - zero[n, k // group]) * scale[n, k // group]

Integers and zero points are in -2**(bits-1) … 2**(bits-1) - 1; without zero points those are 0. A scale may be
negative: the value of a group that is largest, of either sign, then has the integer of the longer side.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Shares of the largest value that the longer side of a grid is tried to reach to.
_REACHES = tuple(1.1 - 0.025 * step for step in range(23))
_PIECE = 1 << 22  # values that scales are searched for at a time


@dataclass(frozen=True, order=True)
class Scheme:
    """How a matrix is stored.

    Args:
        bits: Bits of an integer, 4 or 8.
        group: Columns that share a scale.
        zero_points: Whether they share a zero point as well.
    """

    bits: int
    group: int
    zero_points: bool = False

    @property
    def bits_per_weight(self) -> float:
        """Bits of a value, those of its share of a scale and a zero point among them."""
        return self.bits + (16 + self.bits * self.zero_points) / self.group


@dataclass(frozen=True)
class Rounded:
    """A matrix of integers.

    Args:
        scheme: Storage scheme of the matrix.
        integers: (rows, columns) float32, whole numbers.
        scales: (rows, columns / group) float32, exact in the type that they are stored in.
        zeros: (rows, columns / group) float32, whole numbers.
    """

    scheme: Scheme
    integers: Tensor
    scales: Tensor
    zeros: Tensor

    @property
    def values(self) -> Tensor:
        """What it stands for, (rows, columns) float32."""
        # Adding 0 leaves no integer that is minus zero: none is stored.
        return (self.integers + 0.0 - self.spread(self.zeros)) * self.spread(self.scales)

    def spread(self, by_group: Tensor) -> Tensor:
        """Repeat what groups share for each of their columns."""
        return by_group.repeat_interleave(self.scheme.group, 1)


def to_grid(values: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    """Return the nearest integers.

    Args:
        values: Float32.
        scales: Scales of the same shape, or a repeated one; none is 0.
        zeros: Likewise, whole numbers.
        bits: Bits of an integer.
    """
    half = 1 << (bits - 1)
    return (values / scales).round_().add_(zeros).clamp_(-half, half - 1)


def stored_scales(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return scales as they are once stored, finite and not 0.

    Args:
        scales: Float32.
        dtype: Stored type.
    """
    about = torch.finfo(dtype)
    stored = scales.clamp(about.min, about.max).to(dtype).float()
    return torch.where(stored.abs() < about.tiny, torch.full_like(stored, about.tiny), stored)


def find_grids(
    weights: Tensor, importance: Tensor, scheme: Scheme, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the scales and zero points with which nearest rounding has the least weighted squared error.

    Args:
        weights: (rows, columns) float32.
        importance: (columns,) of each column's error.
        scheme: Storage scheme of the matrix; the group size divides the columns.
        dtype: Stored type of scales.

    Returns:
        Both (rows, columns / group) float32.
    """
    rows, columns = weights.shape
    step = max(1, _PIECE // columns)
    pieces = [
        _find_grids(weights[at : at + step], importance, scheme, dtype)
        for at in range(0, rows, step)
    ]
    scales, zeros = zip(*pieces, strict=True)
    return torch.cat(scales), torch.cat(zeros)


def _find_grids(
    weights: Tensor, importance: Tensor, scheme: Scheme, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    groups = weights.unflatten(1, (-1, scheme.group))
    weighting = importance.view(1, -1, scheme.group)
    best = least = None
    for scales, zeros in _candidates(groups, scheme, dtype):
        spread, offset = scales.unsqueeze(-1), zeros.unsqueeze(-1)
        error = to_grid(groups, spread, offset, scheme.bits)
        error = error.sub_(offset).mul_(spread).sub_(groups).square_().mul_(weighting).sum(-1)
        if best is None or least is None:
            best, least = (scales, zeros), error
            continue
        better = error < least
        best = torch.where(better, scales, best[0]), torch.where(better, zeros, best[1])
        least = torch.where(better, error, least)
    assert best is not None
    return best


def _candidates(
    groups: Tensor, scheme: Scheme, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scales and zero points to be tried, both (rows, groups)."""
    half = 1 << (scheme.bits - 1)
    largest = groups.abs().argmax(-1, keepdim=True)
    longest = groups.gather(-1, largest).squeeze(-1) / -half
    none = torch.zeros_like(longest)
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    for reach in _REACHES:
        for sign in (1, -1):
            yield stored_scales(longest * (sign * reach), dtype), none
        if scheme.zero_points:
            scales = stored_scales((high - low) * reach / (2 * half - 1), dtype)
            zeros = -half - low * reach / scales
            yield scales, zeros.round_().clamp_(-half, half - 1)
