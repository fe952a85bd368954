# SPDX-License-Identifier: Apache-2.0
"""Storage of weights: floats, blockwise int4 and int8 in the layout of MatMulNBits, or per-channel int8.

In float16 a finite number beyond its range becomes the largest that it has.

A matrix of N rows and K columns is cut into blocks of `format.block` columns; the last one is filled
up with zeros. A block keeps one float32 scale, and unsigned integers around a zero point: the middle
of their range, or one of its own where the format has zero points.

    data        (N, blocks, block * bits / 8) uint8; of two 4-bit values the first in the low half
    scales      (N, blocks) float32;             value = (integer - zero point) * scale - offset
    zero_points (N, blocks * bits / 8 rounded up) uint8, packed alike
    offsets     (N, blocks) float32

A format with super-blocks keeps int8 scales and offsets, and floats by which those of adjacent blocks are multiplied:

    super_scales, super_offsets  (N, blocks / format.super_block) float16

Per channel, all K columns are one block, without a block axis and around 0, in the layout of QGemm:

    data        (N, K) int8
    scales      (N) float32;                     value = integer * scale
    zero_points (N) int8, all 0

Integers are those nearest to the values, on a grid that reaches over the values of a block. A `fitted` format has
the grid of the least squared error instead, in which each column has a weight.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.graph import microscaling
from qeff_zoo.graph.numerics import Format

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: Steps of int4 in the range of a block, of which 15 are there: shorter ones clip both extremes, and serve all others.
#: This is best for normal and for trained weights in blocks of 64 (2 % less error than 15).
_STEPS = 15.625
#: Steps in the range of a block that `fitted` formats try. More clip more of the extremes.
_TRIED = (14.5, _STEPS, 16.7, 17.9, 19.3, 20.8)
#: Least and most steps of a scale that is fitted to the values: validation relies on both.
_FEWEST, _MOST = 14.0, 24.0
#: Differences of a zero point that are tried beside the best of those.
_SHIFTS = (0.0, -1.0, 1.0)
#: Values of a search at once, so that its arrays stay in the cache.
_PIECE = 1 << 16
#: Added to a small float, leaves its nearest integer in the low bits: 1.5 * 2**23.
_ROUND = 12582912.0
#: Elements of microscaling formats, by their bits.
_ELEMENTS = {6: "e2m3", 8: "int8"}
_LARGEST = 65504.0  # of float16


def block_count(columns: int, block_size: int) -> int:
    """Count the blocks of a row."""
    return -(-columns // block_size)


@dataclass(frozen=True, slots=True)
class Stored:
    """A piece of a tensor as it is stored.

    Args:
        data: The values, or the packed integers, as bytes in order.
        scales: Scales of integers.
        zero_points: Zero points of integers whose format has them.
        offsets: Offsets of integers whose format has them: those of a checkpoint, never of `quantize`.
        super_scales: Floats of super-blocks, by which scales are multiplied if the format has them, as in a checkpoint.
        super_offsets: The same of offsets.
    """

    data: Array
    scales: Array | None = None
    zero_points: Array | None = None
    offsets: Array | None = None
    super_scales: Array | None = None
    super_offsets: Array | None = None


def quantize(matrix: Array, format: Format, importance: Array | None = None) -> Stored:
    """Quantize a matrix, or a stack of them, blockwise or per channel.

    Args:
        matrix: Float32, (…, K); leading axes stay.
        format: 8 bits without zero points, per-channel as well, or 4 bits with them, in blocks along the last axis; a
            block is a power of two, at least 16.
        importance: Weight of the squared error of each column, positive: (K) of a matrix, (experts, K) of a stack;
            None if all count alike. Only a `fitted` format considers it.

    Raises:
        ValueError: A value is infinite or not a number.
    """
    if format.fitted:
        return _fit(matrix, format.block, importance)
    *lead, columns = matrix.shape
    bits, block_size = format.bits, columns if format.per_channel else format.block
    blocks = block_count(columns, block_size)
    values = matrix.reshape(-1, columns)
    if columns % block_size:
        values = np.pad(values, ((0, 0), (0, blocks * block_size - columns)))
    values = values.reshape(-1, block_size)
    scales, inverse, zeros = _grid(values, bits)
    scaled = values * inverse[:, None]
    scaled += (zeros + np.float32(_ROUND))[:, None]
    if bits == 4:
        np.clip(scaled, np.float32(_ROUND), np.float32(_ROUND + 15), out=scaled)
    integers = scaled.view(np.uint32).astype(np.uint8)
    if format.per_channel:
        return per_channel(integers.reshape(matrix.shape), scales.reshape(lead))
    scales = scales.reshape(*lead, blocks)
    if bits == 8:
        return Stored(integers.reshape(*lead, blocks, block_size), scales)
    zeros = zeros.astype(np.uint8).reshape(*lead, blocks)
    packed = pack(integers, bits).reshape(*lead, blocks, block_size // 2)
    return Stored(packed, scales, pack(zeros, bits))


def per_channel(integers: Array, scales: Array) -> Stored:
    """Return per-channel integers as they are stored, around 0.

    Args:
        integers: (…, K) uint8 around 128.
        scales: (…) float32.
    """
    return Stored((integers ^ np.uint8(128)).view(np.int8), scales, np.zeros(scales.shape, np.int8))


def _fit(matrix: Array, block_size: int, importance: Array | None) -> Stored:
    """Quantize to int4 with the scales and zero points of the least weighted error that a short search finds."""
    *lead, columns = matrix.shape
    blocks = block_count(columns, block_size)
    spare = (0, blocks * block_size - columns)
    stack = matrix.reshape(-1, matrix.shape[-2], columns) if matrix.ndim > 1 else matrix[None, None]
    count, rows = stack.shape[:2]
    data = np.empty((count, rows, blocks, block_size // 2), np.uint8)
    scales = np.empty((count, rows, blocks), np.float32)
    zeros = np.empty((count, rows, blocks), np.uint8)
    weights = None
    if importance is not None:
        each = np.broadcast_to(importance.reshape(-1, columns), (count, columns))
        weights = np.pad(each, ((0, 0), spare)).reshape(count, blocks, block_size).swapaxes(1, 2)
    step = max(1, _PIECE // columns)
    for number, start in product(range(count), range(0, rows, step)):
        values = stack[number, start : start + step]
        if spare[1]:
            values = np.pad(values, ((0, 0), spare))
        # Blocks side by side: sums over a block are sums of long rows. (block, rows, blocks)
        values = values.reshape(len(values), blocks, block_size).transpose(2, 0, 1)
        search = _Search(
            np.ascontiguousarray(values), None if weights is None else weights[number][:, None]
        )
        at = number, slice(start, start + step)
        integers = search.run().transpose(1, 2, 0)
        data[at], scales[at], zeros[at] = pack(integers, 4), search.scales, search.zeros
    shape = (*lead, blocks)
    return Stored(data.reshape(*shape, -1), scales.reshape(shape), pack(zeros.reshape(shape), 4))


class _Search:
    """Search of the grids of blocks; operations are by element, so that a piece of a matrix gets what all of it gets.

    Args:
        values: (block, …) float32.
        weights: Weight of each squared error, broadcast to `values`; None if all count alike.
    """

    def __init__(self, values: Array, weights: Array | None) -> None:
        self.values, self.weights = values, weights
        self.highest = np.maximum(_halved(values, np.maximum), 0)
        self.lowest = np.minimum(_halved(values, np.minimum), 0)
        if not (np.isfinite(self.highest).all() and np.isfinite(self.lowest).all()):
            raise ValueError("A value is infinite or not a number.")
        self.unit = self._step(15)
        self.scales = self.zeros = np.zeros_like(self.unit)
        self.errors = np.full_like(self.unit, np.inf)
        self.scaled, self.nearest = np.empty_like(values), np.empty_like(values)

    def run(self) -> Array:
        """Find `scales` and `zeros`; return the integers, uint8 in the shape of the values."""
        for steps in _TRIED:
            scales = self._step(steps)
            middle = -self.lowest * _inverse(scales) - np.float32((steps - 15) / 2)
            self._try(scales, np.clip(np.rint(middle), 0, 15))
        scales, zeros = self.scales, self.zeros
        for shift in _SHIFTS:
            shifted = np.clip(zeros + np.float32(shift), 0, 15)
            self._try(self._refitted(scales, shifted), shifted)
        offset = self.zeros + np.float32(_ROUND)
        self._round(self.scales, offset)
        return self.nearest.view(np.uint32).astype(np.uint8)

    def _step(self, steps: float) -> Array:
        share = np.float32(1 / steps)
        return self.highest * share - self.lowest * share

    def _round(self, scales: Array, offset: Array) -> None:
        """Set `scaled` to values in steps, and `nearest` to their integers, as the low bits of floats."""
        np.multiply(self.values, _inverse(scales), out=self.scaled)
        np.add(self.scaled, offset, out=self.nearest)
        np.clip(self.nearest, np.float32(_ROUND), np.float32(_ROUND + 15), out=self.nearest)

    def _try(self, scales: Array, zeros: Array) -> None:
        """Keep a grid where its error is less than that of the best."""
        offset = zeros + np.float32(_ROUND)
        self._round(scales, offset)
        errors = self.nearest
        errors -= offset
        errors -= self.scaled
        errors *= errors
        if self.weights is not None:
            errors *= self.weights
        # In units of the range: a square of a large scale has no float32.
        found = _halved(errors, np.add) * np.square(scales * _inverse(self.unit))
        better = found < self.errors
        self.scales = np.where(better, scales, self.scales)
        self.zeros = np.where(better, zeros, self.zeros)
        self.errors = np.where(better, found, self.errors)

    def _refitted(self, scales: Array, zeros: Array) -> Array:
        """Return the scales of the least error of the integers that a grid gives."""
        offset = zeros + np.float32(_ROUND)
        self._round(scales, offset)
        self.nearest -= offset
        self.scaled *= self.nearest
        self.nearest *= self.nearest
        if self.weights is not None:
            self.scaled *= self.weights
            self.nearest *= self.weights
        along, length = _halved(self.scaled, np.add), _halved(self.nearest, np.add)
        ratio = np.divide(along, length, out=np.ones_like(along), where=length > 0)
        refitted: Array = np.clip(scales * ratio, self._step(_MOST), self._step(_FEWEST))
        return refitted


def _halved(values: Array, operation: np.ufunc) -> Array:
    """Reduce the first axis, whose length is a power of two."""
    while len(values) > 1:
        half = len(values) // 2
        values = operation(values[:half], values[half:])
    reduced: Array = values[0]
    return reduced


def _grid(values: Array, bits: int) -> tuple[Array, Array, Array]:
    """Return the scales of blocks, their inverses and the zero points, all float32 (blocks)."""
    highest, lowest = _reduce(values, np.maximum), _reduce(values, np.minimum)
    if not (np.isfinite(highest).all() and np.isfinite(lowest).all()):
        raise ValueError("A value is infinite or not a number.")
    if bits == 4:
        share = np.float32(1 / _STEPS)
        lowest = np.minimum(lowest, 0)
        scales = np.maximum(highest, 0) * share - lowest * share
    elif bits == 8:
        scales = np.maximum(highest, -lowest) / np.float32(127)
    else:
        raise ValueError(f"Cannot quantize to {bits} bits, expected 4 or 8.")
    inverse = _inverse(scales)
    if bits == 8:
        return scales, inverse, np.full_like(scales, 128)
    cut = np.float32((_STEPS - 15) / 2)
    return scales, inverse, np.maximum(np.rint(-lowest * inverse - cut), 0)


def _inverse(scales: Array) -> Array:
    inverse = np.zeros_like(scales)
    with np.errstate(over="ignore"):
        np.divide(np.float32(1), scales, out=inverse, where=scales != 0)
    inverse[~np.isfinite(inverse)] = 0  # a block of subnormal numbers
    return inverse


def _reduce(values: Array, operation: np.ufunc) -> Array:
    # Halving the whole array is seven times as fast as a reduction along a short last axis.
    reduced, width = values.reshape(-1), values.shape[1]
    while width > 1 and width % 2 == 0:
        reduced = operation(reduced[0::2], reduced[1::2])
        width //= 2
    return reduced if width == 1 else operation.reduce(reduced.reshape(-1, width), axis=1)


def pack(integers: Array, bits: int) -> Array:
    """Pack integers along the last axis, the first in the lowest bits; the last byte is filled up with zeros.

    Args:
        integers: uint8.
        bits: Bits of each: 2, 4 or 8.
    """
    each = 8 // bits
    if spare := -integers.shape[-1] % each:
        integers = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, spare)])
    words = np.ascontiguousarray(integers).view(f"<u{each}")  # each becomes a byte, its lowest
    for shift in {2: (6, 12), 4: (4,), 8: ()}[bits]:
        words = words | (words >> words.dtype.type(shift))
    packed: Array = words.astype(np.uint8, copy=False)
    return packed


def _unpack(packed: Array) -> Array:
    nibbles: Array = np.stack([packed & 15, packed >> 4], -1)
    return nibbles.reshape(*packed.shape[:-1], -1)


def dequantize(stored: Stored, shape: tuple[int, ...]) -> Array:
    """Return the float32 values that a product is computed with.

    Args:
        stored: Result of `quantize`.
        shape: Shape of the matrix: (…, K).
    """
    assert stored.scales is not None
    if stored.data.dtype == np.int8:
        whole: Array = stored.data.astype(np.float32) * stored.scales[..., None]
        return whole
    *lead, blocks = stored.scales.shape
    integers, zeros = stored.data, np.full(1, 128, np.float32)
    if stored.zero_points is not None:
        integers = _unpack(stored.data)
        zeros = _unpack(stored.zero_points)[..., :blocks, None].astype(np.float32)
    values = integers.reshape(*lead, blocks, -1).astype(np.float32)
    values -= zeros
    values *= stored.scales[..., None]
    return values.reshape(*lead, -1)[..., : shape[-1]].reshape(shape)


def store(
    raw: Array,
    dtype: str,
    format: Format,
    add: float = 0.0,
    buffer: Array | None = None,
    importance: Array | None = None,
) -> Stored:
    """Convert values of a checkpoint to a storage format; no copy if nothing changes.

    Args:
        raw: Values; BF16 as uint16.
        dtype: Safetensors dtype of the values.
        format: Storage format.
        add: Added in float32.
        buffer: Float32, one axis, room for the values; the result may lie in it.
        importance: See `quantize`.

    Raises:
        ValueError: A value to be quantized is infinite or not a number.
    """
    if dtype == f"F{format.bits}" and not add:
        return Stored(np.ascontiguousarray(raw))
    out = None if buffer is None else buffer[: raw.size].reshape(raw.shape)
    values = to_float32(raw, dtype, out)
    if add:
        values += np.float32(add)
    if format.bits == 16:
        return Stored(_narrowed(values))
    return Stored(values) if format.is_float else quantize(values, format, importance)


def _narrowed(values: Array) -> Array:
    """Return values in float16, finite ones limited to its range; infinities and NaN stay."""
    within = np.clip(values, -_LARGEST, _LARGEST)
    narrowed: Array = np.where(np.isinf(values), values, within).astype(np.float16)
    return narrowed


def round_trip(matrix: Array, format: Format, importance: Array | None = None) -> Array:
    """Return the float32 values of a float32 tensor after its storage.

    Args:
        matrix: Tensor in float32.
        format: Storage format.
        importance: See `quantize`.
    """
    if format.bits == 16:
        return microscaling.to_float16_and_back(matrix)
    if format.is_mx:  # of float16 numbers, as devices are given them
        narrow = microscaling.to_float16_and_back(matrix)
        return microscaling.round_trip(narrow, _ELEMENTS[format.bits], format.axis, out=narrow)
    stored = store(matrix, "F32", format, importance=importance)
    return stored.data if format.is_float else dequantize(stored, matrix.shape)
