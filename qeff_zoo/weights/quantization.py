# SPDX-License-Identifier: Apache-2.0
"""What weights become when stored: floats, blockwise int4 and int8 as MatMulNBits wants them, or per-channel int8.

In float16 a finite number beyond its range becomes the largest that it has.

A matrix of N rows and K columns is cut into blocks of `format.block` columns; the last one is filled
up with zeros. A block keeps one float32 scale, and unsigned integers around a zero point: the middle
of their range, or one of its own where the format has zero points.

    data        (N, blocks, block * bits / 8) uint8; of two 4-bit values the first in the low half
    scales      (N, blocks) float32;             value = (integer - zero point) * scale - offset
    zero_points (N, blocks * bits / 8 rounded up) uint8, packed alike
    offsets     (N, blocks) float32

Per channel, all K columns are one block, without a block axis and around 0, as QGemm wants them:

    data        (N, K) int8
    scales      (N) float32;                     value = integer * scale
    zero_points (N) int8, all 0
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.graph import microscaling
from qeff_zoo.graph.numerics import Format

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: Steps of int4 in the range of a block, of which 15 are there: shorter ones clip both extremes, and serve all others.
#: This is best for normal and for trained weights in blocks of 64 (2 % less error than 15).
_STEPS = 15.625
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
        offsets: Likewise.
    """

    data: Array
    scales: Array | None = None
    zero_points: Array | None = None
    offsets: Array | None = None


def quantize(matrix: Array, format: Format) -> Stored:
    """Quantize blockwise.

    Args:
        matrix: Float32, (…, K); leading axes stay.
        format: 8 bits without zero points, per-channel as well, or 4 bits with them, in blocks along the last axis; a
            block is a power of two, at least 16.

    Raises:
        ValueError: A value is infinite or not a number.
    """
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


def _grid(values: Array, bits: int) -> tuple[Array, Array, Array]:
    """Return the scales of blocks, what to multiply by, and the zero points, all float32."""
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
    inverse = np.zeros_like(scales)
    with np.errstate(over="ignore"):
        np.divide(np.float32(1), scales, out=inverse, where=scales != 0)
    inverse[~np.isfinite(inverse)] = 0  # a block of subnormal numbers
    if bits == 8:
        return scales, inverse, np.full_like(scales, 128)
    cut = np.float32((_STEPS - 15) / 2)
    return scales, inverse, np.maximum(np.rint(-lowest * inverse - cut), 0)


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
    raw: Array, dtype: str, format: Format, add: float = 0.0, buffer: Array | None = None
) -> Stored:
    """Convert what was read from a checkpoint to what is stored; no copy where nothing changes.

    Args:
        raw: Values; BF16 as uint16.
        dtype: Safetensors dtype of the values.
        format: How they are stored.
        add: Added in float32.
        buffer: Float32, one axis, room for the values; the result may lie in it.

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
    return Stored(values) if format.is_float else quantize(values, format)


def _narrowed(values: Array) -> Array:
    """Return finite numbers within float16's range; infinities stay, as does what is no number."""
    within = np.clip(values, -_LARGEST, _LARGEST)
    narrowed: Array = np.where(np.isinf(values), values, within).astype(np.float16)
    return narrowed


def round_trip(matrix: Array, format: Format) -> Array:
    """Return the float32 values that are left of a float32 tensor once it is stored.

    Args:
        matrix: Float32.
        format: How it is stored.
    """
    if format.bits == 16:
        return microscaling.to_float16_and_back(matrix)
    if format.is_mx:  # of float16 numbers, as devices are given them
        narrow = microscaling.to_float16_and_back(matrix)
        return microscaling.round_trip(narrow, _ELEMENTS[format.bits], format.axis, out=narrow)
    stored = store(matrix, "F32", format)
    return stored.data if format.is_float else dequantize(stored, matrix.shape)
