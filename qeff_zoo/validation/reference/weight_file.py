# SPDX-License-Identifier: Apache-2.0
"""The tensors of a package's weight file, dequantized piece by piece, and how far each value may lie from the model's.

Only the reference process imports this. It is written after the description of the formats, and shares no code with
what writes the file.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor

from qeff_zoo.graph.numerics import Format

Index: TypeAlias = tuple[int | slice, ...]

_PIECE = 1 << 22  # values that are compared at once
_HALF = 0.5005  # of a step: half, and what float32 adds to it
_EPSILON = float(torch.finfo(torch.float32).eps)
_TINY = float(torch.finfo(torch.float32).tiny)  # blocks of smaller numbers become 0
_FLOAT16 = float(torch.finfo(torch.float16).max)
_RANGE, _SHIFTED = 15, 4  # steps of int4, and how many of them a fitted grid may be shifted by
#: Shares of the step that reaches over a block's values between which a fitted one is.
_COARSEST, _FINEST = 15 / 14 * (1 + 1e-4), 15 / 24 * (1 - 1e-4)


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor of the file.

    Args:
        values: Factors of a product, float32.
        steps: Difference of neighbouring values that its integers have, in the shape of `values`; None for floats.
        end: -1 where an integer is the first of its range, 1 where it is the last, else 0; None for floats.
    """

    values: Tensor
    steps: Tensor | None = None
    end: Tensor | None = None


class WeightFile:
    """A package's weight file.

    Args:
        path: A safetensors file.
    """

    def __init__(self, path: Path) -> None:
        opened: Any = safe_open(path, "pt")
        self._file, self.names = opened, {*opened.keys()}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor as it is stored."""
        return tuple(self._file.get_slice(name).get_shape())

    def is_float16(self, name: str) -> bool:
        """Whether a tensor is one of float16 numbers."""
        return str(self._file.get_slice(name).get_dtype()) == "F16"

    def order(self, name: str) -> Tensor:
        """Return the input column of each stored column of a matrix with act-order."""
        order: Tensor = self._file.get_tensor(f"{name}.order")
        return order.long()

    def read(
        self, name: str, format: Format, index: Index, columns: int, *, rounded: bool
    ) -> Piece:
        """Dequantize rows of a tensor.

        Args:
            name: Its name in the file.
            format: How it is stored.
            index: Index of the rows.
            columns: Values of a row.
            rounded: Whether steps are needed, too.
        """
        data = self._part(name, index)
        if format.element:
            scales = _spread(self._part(f"{name}.scales", index).float(), format.block, columns)
            return Piece(data.float() * scales)
        if format.is_float:
            return Piece(data.float() if data.is_floating_point() else data)
        scales = self._factors(name, "scales", format, index)
        if format.per_channel:
            integers = data.to(torch.int16) - self._part(f"{name}.zero_points", index)[..., None]
            steps = scales[..., None].expand_as(integers)
            return Piece(integers * steps, steps, integers.sign() * (integers.abs() >= 127))
        integers = _unpacked(data, format.bits)
        zeros: Tensor | int = 1 << (format.bits - 1)
        if format.zero_points:
            packed = self._part(f"{name}.zero_points", index)
            zeros = _unpacked(packed, format.bits)[..., : scales.shape[-1], None].float()
        values = integers.float().sub_(zeros).mul_(scales[..., None])
        if format.offsets:
            offsets = self._factors(name, "offsets", format, index)
            values -= (offsets - format.origin * scales)[..., None]
        every = [values]
        if rounded:
            last = (1 << format.bits) - 1
            every += [
                scales[..., None].expand_as(values),
                (integers == last).int() - (integers == 0).int(),
            ]
        return Piece(*(one.flatten(-2)[..., :columns] for one in every))

    def _factors(self, name: str, what: str, format: Format, index: Index) -> Tensor:
        """Return the scales or the offsets of blocks in float32."""
        factors = self._part(f"{name}.{what}", index).float()
        if not format.super_block:
            return factors
        supers = self._part(f"{name}.super_{what}", index).float()
        return factors * supers.repeat_interleave(format.super_block, -1)

    def _part(self, name: str, index: Index) -> Tensor:
        found: Tensor = self._file.get_slice(name)[index or ...]
        return found


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return integers of bytes, the first in the lowest bits."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)


def _spread(scales: Tensor, block: int, columns: int) -> Tensor:
    """Return the scale of each column; those of rows of one scale have no axis of blocks, or one of length 1."""
    return scales.repeat_interleave(block or columns, -1)[..., :columns]


def pieces(shape: tuple[int, ...]) -> Iterator[Index]:
    """Cut a tensor into rows of few values.

    Args:
        shape: Shape of the tensor; rows are never cut.

    Yields:
        An index of leading axes, the last of which is a slice.
    """
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    if row > _PIECE and len(shape) > 2:
        yield from ((at, *rest) for at in range(shape[0]) for rest in pieces(shape[1:]))
        return
    step = max(1, _PIECE // max(1, row))
    yield from ((slice(at, min(at + step, shape[0])),) for at in range(0, shape[0], step))


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far values of a file lie from those of the model, in units of what is allowed.

    Args:
        error: The largest distance; above 1 something is wrong.
        zeroed: The same if the largest of them were 0; 0 if all are.
    """

    error: float
    zeroed: float


def distance(
    expected: Tensor, piece: Piece, format: Format, *, rounded: bool, slack: int
) -> Distance:
    """Compare rows of the file with the model's.

    Values that are rounded may lie half a step from the model's: of a step that the model's own values of a block
    have in a format, which the file's may not exceed. int4 clips the extremes of a block, by less than half a step. A
    fitted int4 may clip more of them: its step has bounds, and its grid lies within the range of the block. What it
    does not clip is at the nearest step of the file.
    Floats, and integers of a checkpoint, are what they are.

    Args:
        expected: The model's values.
        piece: The file's.
        format: How they are stored.
        rounded: Whether a package rounded them.
        slack: Roundings of float32 by which values that should be equal may differ.
    """
    if piece.values.shape != expected.shape:
        return Distance(error=math.inf, zeroed=math.inf)
    expected = expected.float() if expected.is_floating_point() else expected.to(piece.values.dtype)
    if format.bits == 16 and format.is_float:
        expected = expected.clamp(-_FLOAT16, _FLOAT16).half().float()
    error = (expected - piece.values).abs()
    if rounded and piece.steps is not None and piece.end is not None:
        error = error.double()
        steps = _steps(expected, format)
        if format.fitted:
            return _distance_of_fitted(expected, piece, error, steps)
        allowed = torch.where((piece.end != 0) & (format.bits == 4), 1.0, _HALF) * steps + _TINY
        coarse = _largest(piece.steps.double(), steps * (1 + 1e-4) + _TINY)
        return Distance(
            error=max(_largest(error, allowed), coarse),
            zeroed=_largest(expected.abs().double(), allowed),
        )
    # All values of a row may be as far off: its largest one decides.
    size, error, values = (
        one.amax(-1).double() if one.dim() else one.double()
        for one in ((piece.values if expected.dim() else expected).abs(), error, expected.abs())
    )
    allowed = size * _EPSILON * slack
    return Distance(error=_largest(error, allowed), zeroed=_largest(values, allowed))


def _distance_of_fitted(expected: Tensor, piece: Piece, error: Tensor, steps: Tensor) -> Distance:
    """Compare rows of fitted int4.

    Args:
        expected: The model's values.
        piece: The file's.
        error: Distances of both.
        steps: The step of each value's block whose 15 reach over its range.
    """
    assert piece.steps is not None
    assert piece.end is not None
    stored = piece.steps.double()
    half = _HALF * stored + _TINY
    beyond = (expected - piece.values) * piece.end > 0
    clipped = half + (_RANGE * (steps - stored)).clamp(min=0) + _SHIFTED * stored
    reach = _largest(stored, steps * _COARSEST + _TINY)
    short = _largest(steps * _FINEST, stored + _TINY)
    return Distance(
        error=max(_largest(error, torch.where(beyond, clipped, half)), reach, short),
        zeroed=_largest(expected.abs().double(), half),
    )


def _steps(expected: Tensor, format: Format) -> Tensor:
    """Return the step of each value's block that a right quantizer does not exceed."""
    columns = expected.shape[-1]
    block = format.block or columns
    blocks = torch.nn.functional.pad(expected.double(), (0, -columns % block)).unflatten(
        -1, (-1, block)
    )
    if format.zero_points:
        range_ = blocks.amax(-1).clamp(min=0) - blocks.amin(-1).clamp(max=0)
        steps = range_ / ((1 << format.bits) - 1)
    else:
        steps = blocks.abs().amax(-1) / ((1 << (format.bits - 1)) - 1)
    each: Tensor = steps.repeat_interleave(block, -1)[..., :columns]
    return each


def _largest(values: Tensor, allowed: Tensor) -> float:
    """Return the largest value in units of what is allowed; infinite if none is, or if it is no number."""
    ratios = torch.where(values == 0, 0.0, values / allowed)
    largest = float(ratios.max()) if ratios.numel() else 0.0
    return math.inf if math.isnan(largest) or not math.isfinite(float(values.sum())) else largest
