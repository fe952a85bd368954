# SPDX-License-Identifier: Apache-2.0
"""Matrices as integers in groups of columns that share a scale, and the scales that suit them.

    value[n, k] = integer[n, k] * scale[n, k // group],  integer in -2**(bits-1) … 2**(bits-1) - 1

A scale may be negative: the value of a group that is largest, of either sign, then has the integer of the longer side.
"""

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
        bits: Of an integer, 4 or 8.
        group: Columns that share a scale.
    """

    bits: int
    group: int

    @property
    def bits_per_weight(self) -> float:
        """Bits of a value, those of its share of a scale among them."""
        return self.bits + 16 / self.group


@dataclass(frozen=True)
class Rounded:
    """A matrix of integers.

    Args:
        scheme: How it is stored.
        integers: (rows, columns) float32, whole numbers.
        scales: (rows, columns / group) float32, exact in the type that they are stored in.
    """

    scheme: Scheme
    integers: Tensor
    scales: Tensor

    @property
    def values(self) -> Tensor:
        """What it stands for, (rows, columns) float32."""
        # Adding 0 leaves no integer that is minus zero: none is stored.
        return (self.integers + 0.0) * self.scales.repeat_interleave(self.scheme.group, 1)


def to_grid(values: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return the nearest integers.

    Args:
        values: Float32.
        scales: Of the same shape, or one that is repeated; none is 0.
        bits: Of an integer.
    """
    half = 1 << (bits - 1)
    return (values / scales).round_().clamp_(-half, half - 1)


def stored_scales(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return scales as they are once stored, finite and not 0.

    Args:
        scales: Float32.
        dtype: That they are stored in.
    """
    about = torch.finfo(dtype)
    found = scales.clamp(about.min, about.max).to(dtype).float()
    return torch.where(found.abs() < about.tiny, torch.full_like(found, about.tiny), found)


def find_scales(weights: Tensor, importance: Tensor, scheme: Scheme, dtype: torch.dtype) -> Tensor:
    """Return the scales with which nearest rounding has the least weighted squared error.

    Args:
        weights: (rows, columns) float32.
        importance: (columns,) of each column's error.
        scheme: How it is stored; its group divides the columns.
        dtype: That scales are stored in.

    Returns:
        (rows, columns / group) float32.
    """
    rows, columns = weights.shape
    step = max(1, _PIECE // columns)
    pieces = [
        _find_scales(weights[at : at + step], importance, scheme, dtype)
        for at in range(0, rows, step)
    ]
    return torch.cat(pieces)


def _find_scales(weights: Tensor, importance: Tensor, scheme: Scheme, dtype: torch.dtype) -> Tensor:
    groups = weights.unflatten(1, (-1, scheme.group))
    weighting = importance.view(1, -1, scheme.group)
    place = groups.abs().argmax(-1, keepdim=True)
    longest = groups.gather(-1, place).squeeze(-1) / -(1 << (scheme.bits - 1))
    best = torch.zeros_like(longest)
    least = torch.full_like(longest, torch.inf)
    for reach in _REACHES:
        for sign in (1, -1):
            scales = stored_scales(longest * (sign * reach), dtype)
            spread = scales.unsqueeze(-1)
            error = to_grid(groups, spread, scheme.bits).mul_(spread).sub_(groups)
            error = error.square_().mul_(weighting).sum(-1)
            better = error < least
            best = torch.where(better, scales, best)
            least = torch.where(better, error, least)
    return best
