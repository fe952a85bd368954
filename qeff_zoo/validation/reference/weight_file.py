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

_PIECE = 1 << 18  # values that are compared at once: a processor's cache holds them
_HALF = 0.5005  # of a step: half, and what float32 adds to it
_EPSILON = float(torch.finfo(torch.float32).eps)
_TINY = float(torch.finfo(torch.float32).tiny)  # blocks of smaller numbers become 0
_FLOAT16 = float(torch.finfo(torch.float16).max)
_CLIPPED = 4  # bits of integers whose extremes may lie beyond their range
_RANGE, _SHIFTED = 15, 4  # steps of int4, and how many of them a fitted grid may be shifted by
#: Shares of the step that reaches over a block's values between which a fitted one is.
_COARSEST, _FINEST = 15 / 14 * (1 + 1e-4), 15 / 24 * (1 - 1e-4)


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor of the file.

    Args:
        values: Factors of a product, float32, (…, columns).
        steps: Difference of neighbouring values that the integers of each block have, (…, blocks); None for floats.
        end: -1 where an integer is the first of its range, 1 where it is the last, else 0, in the shape of `values`;
            None if an extreme may lie no farther than others.
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
            name: Name of the tensor in the file.
            format: Storage format of the tensor.
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
            return Piece(integers * scales[..., None], scales[..., None])
        integers = _unpacked(data, format.bits)
        zeros: Tensor | int = 1 << (format.bits - 1)
        if format.zero_points:
            packed = self._part(f"{name}.zero_points", index)
            zeros = _unpacked(packed, format.bits)[..., : scales.shape[-1], None].float()
        values = integers.float().sub_(zeros).mul_(scales[..., None])
        if format.offsets:
            offsets = self._factors(name, "offsets", format, index)
            values -= (offsets - format.origin * scales)[..., None]
        end = None
        if rounded and format.bits == _CLIPPED:
            last = (1 << format.bits) - 1
            end = _cut((integers == last).to(torch.int8) - (integers == 0).to(torch.int8), columns)
        return Piece(_cut(values, columns), scales if rounded else None, end)

    def _factors(self, name: str, what: str, format: Format, index: Index) -> Tensor:
        """Return the scales or the offsets of blocks in float32."""
        factors = self._part(f"{name}.{what}", index).float()
        if not format.super_block:
            return factors
        supers = self._part(f"{name}.super_{what}", index).float()
        return factors * supers.repeat_interleave(format.super_block, -1)

    def _part(self, name: str, index: Index) -> Tensor:
        part: Tensor = self._file.get_slice(name)[index or ...]
        return part


def _cut(blocks: Tensor, columns: int) -> Tensor:
    """Return the columns of blocks, (…, blocks, block), without the rest of the last."""
    return blocks.flatten(-2)[..., :columns]


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return integers of bytes, the first in the lowest bits."""
    if bits == 8:
        return packed
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
        format: Storage format of the values.
        rounded: Whether a package rounded them.
        slack: Roundings of float32 by which values that should be equal may differ.
    """
    if piece.values.shape != expected.shape:
        return Distance(error=math.inf, zeroed=math.inf)
    expected = expected.float() if expected.is_floating_point() else expected.to(piece.values.dtype)
    if format.bits == 16 and format.is_float:
        expected = expected.clamp(-_FLOAT16, _FLOAT16).half().float()
    if rounded and piece.steps is not None:
        return _distance_of_rounded(expected, piece, piece.steps.double(), format)
    error = (expected - piece.values).abs()
    # All values of a row may be as far off: its largest one decides.
    size, error, values = (
        one.amax(-1).double() if one.dim() else one.double()
        for one in ((piece.values if expected.dim() else expected).abs(), error, expected.abs())
    )
    allowed = size * _EPSILON * slack
    return Distance(error=_largest(error, allowed), zeroed=_largest(values, allowed))


def _distance_of_rounded(
    expected: Tensor, piece: Piece, stored: Tensor, format: Format
) -> Distance:
    """Compare rows of integers that a package rounded, block by block.

    Args:
        expected: The model's values.
        piece: The file's.
        stored: Steps of the file, (…, blocks), float64.
        format: Storage format of both.
    """
    size = format.block or expected.shape[-1]
    values = _blocks(expected, size)
    difference = values - _blocks(piece.values, size)
    error = difference.abs()
    ends = None if piece.end is None else _blocks(piece.end, size)
    steps, largest = _steps_and_largest(values, format)
    half = _HALF * stored + _TINY
    if format.fitted:
        assert ends is not None
        beyond = difference * ends > 0
        clipped = half + (_RANGE * (steps - stored)).clamp(min=0) + _SHIFTED * stored
        errors = [
            _largest(error.masked_fill(beyond, 0).amax(-1), half),
            _largest(error.masked_fill(~beyond, 0).amax(-1), clipped),
            _largest(stored, steps * _COARSEST + _TINY),
            _largest(steps * _FINEST, stored + _TINY),
        ]
        return Distance(error=max(errors), zeroed=_largest(largest, half))
    allowed = _HALF * steps + _TINY
    if ends is not None:  # a clipped one may lie a whole step away
        error = torch.where(ends != 0, _HALF * error, error)
    coarse = _largest(stored, steps * (1 + 1e-4) + _TINY)
    return Distance(
        error=max(_largest(error.amax(-1), allowed), coarse),
        zeroed=_largest(largest, allowed if ends is None else steps + _TINY),
    )


def _blocks(values: Tensor, size: int) -> Tensor:
    """Return columns in blocks, (…, blocks, size), the last filled with zeros."""
    if rest := -values.shape[-1] % size:
        values = torch.nn.functional.pad(values, (0, rest))
    blocks: Tensor = values.unflatten(-1, (-1, size))
    return blocks


def _steps_and_largest(blocks: Tensor, format: Format) -> tuple[Tensor, Tensor]:
    """Return the step of each block that a right quantizer does not exceed, and its largest magnitude, float64."""
    least, most = (one.double() for one in torch.aminmax(blocks, dim=-1))
    largest = torch.maximum(least.abs(), most.abs())
    if format.zero_points:
        steps = (most.clamp(min=0) - least.clamp(max=0)) / ((1 << format.bits) - 1)
    else:
        steps = largest / ((1 << (format.bits - 1)) - 1)
    return steps, largest


def _largest(values: Tensor, allowed: Tensor) -> float:
    """Return the largest value in units of what is allowed; infinite if none is, or if it is no number."""
    ratios = torch.where(values == 0, 0.0, values / allowed)
    largest = float(ratios.max()) if ratios.numel() else 0.0
    return math.inf if math.isnan(largest) or not math.isfinite(float(values.sum())) else largest
