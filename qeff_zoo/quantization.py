# SPDX-License-Identifier: Apache-2.0
"""What weights become when stored: float conversions, and blockwise int4 and int8 in the layout of MatMulNBits.

A matrix of N rows and K columns is cut into blocks of `block_size` columns; the last one is filled up with zeros. A
block keeps one float32 scale and unsigned integers around a zero point of 8 (int4) or 128 (int8):

    packed (N, blocks, block_size * bits / 8) uint8, the first of two int4 values in the low half of a byte
    scales (N, blocks) float32;     value = (integer - zero point) * scale
"""

from typing import Any, Literal, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: How a tensor is stored; "keep" is the checkpoint's own dtype.
Storage = Literal["float32", "float16", "bfloat16", "int8", "int4", "keep"]

#: Bits of an element of the blockwise storages.
BITS = {"int4": 4, "int8": 8}

#: Safetensors dtypes that `to_float32` takes.
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})

_FLOAT16_MAX = 65504.0
#: Added to a small float, leaves its nearest integer in the low bits: 1.5 * 2**23.
_ROUND = 12582912.0


def to_float32(raw: Array, dtype: str, out: Array | None = None) -> Array:
    """Convert to float32; exact but for float64.

    Args:
        raw: Values; BF16 as uint16.
        dtype: Safetensors dtype of the values, one of `FLOATS`.
        out: Where to put them: float32, same shape, contiguous.
    """
    if out is None:
        out = np.empty(raw.shape, np.float32)
    if dtype == "BF16":  # the upper half of a float32
        np.left_shift(raw, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
    elif dtype in FLOATS:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, as in torch
            np.copyto(out, raw, casting="same_kind")
    else:
        raise ValueError(f"Cannot convert {dtype} to float32, expected one of {sorted(FLOATS)}.")
    return out


def to_float16(values: Array, out: Array) -> int:
    """Round float32 to float16; what is finite stays finite.

    Args:
        values: Float32; overwritten where clipped.
        out: Where to put the result: float16, same shape.

    Returns:
        How many values were beyond ±65504 and were clipped to it.
    """
    clipped = 0
    if not (values.max(initial=0) <= _FLOAT16_MAX and values.min(initial=0) >= -_FLOAT16_MAX):
        beyond = (np.abs(values) > _FLOAT16_MAX) & np.isfinite(values)
        clipped = int(beyond.sum())
        values[beyond] = np.copysign(np.float32(_FLOAT16_MAX), values[beyond])
    np.copyto(out, values, casting="same_kind")
    return clipped


def to_bfloat16(values: Array, out: Array) -> None:
    """Round float32 to bfloat16, ties to even.

    Args:
        values: Float32.
        out: Where to put the result: uint16, same shape.
    """
    bits = values.view(np.uint32)
    rounded = (bits >> np.uint32(16)) & np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    if (nan := np.isnan(values)).any():
        rounded[nan] = (bits[nan] >> np.uint32(16)) | np.uint32(0x40)  # stay a NaN
    np.copyto(out, rounded, casting="same_kind")


def block_count(columns: int, block_size: int) -> int:
    """Count the blocks of a row."""
    return -(-columns // block_size)


def quantize(matrix: Array, bits: int, block_size: int = 32) -> tuple[Array, Array]:
    """Quantize blockwise to the nearest representable values.

    Args:
        matrix: Float32, (…, K); leading axes stay.
        bits: 4 or 8.
        block_size: Columns that share a scale; a power of two, at least 16.

    Returns:
        `packed` (…, blocks, block_size * bits / 8) and `scales` (…, blocks).

    Raises:
        ValueError: A value is infinite or not a number.
    """
    *lead, columns = matrix.shape
    blocks = block_count(columns, block_size)
    values = matrix.reshape(-1, columns)
    if columns % block_size:
        values = np.pad(values, ((0, 0), (0, blocks * block_size - columns)))
    values = values.reshape(-1, block_size)
    scales = _scales(values, bits)
    inverse = np.zeros_like(scales)
    with np.errstate(over="ignore"):
        np.divide(np.float32(1), scales, out=inverse, where=scales != 0)
    inverse[~np.isfinite(inverse)] = 0  # a block of subnormal numbers
    scaled = values * inverse[:, None]
    scaled += np.float32(_ROUND + (1 << (bits - 1)))
    integers = scaled.view(np.uint32).astype(np.uint8)
    if bits == 4:
        integers = _pack(np.minimum(integers, 15, out=integers))
    return integers.reshape(*lead, blocks, block_size * bits // 8), scales.reshape(*lead, blocks)


def _scales(values: Array, bits: int) -> Array:
    # int4 has 16 values around zero, one more below: the scale's sign puts the largest there, exactly
    # (about 12 % less error than an unsigned scale). At int8 that gains nothing.
    highest, lowest = _reduce(values, np.maximum), _reduce(values, np.minimum)
    if bits == 4:
        scales = np.where(highest > -lowest, highest, lowest) * np.float32(-1 / 8)
    elif bits == 8:
        scales = np.maximum(highest, -lowest) / np.float32(127)
    else:
        raise ValueError(f"Cannot quantize to {bits} bits, expected 4 or 8.")
    if not np.isfinite(scales).all():
        raise ValueError("A value is infinite or not a number.")
    return scales


def _reduce(values: Array, operation: np.ufunc) -> Array:
    # Halving the whole array is seven times as fast as a reduction along a short last axis.
    reduced, width = values.reshape(-1), values.shape[1]
    while width > 1:
        reduced = operation(reduced[0::2], reduced[1::2])
        width //= 2
    return reduced


def _pack(nibbles: Array) -> Array:
    pairs = nibbles.view("<u2")  # low | high << 8
    return ((pairs >> np.uint16(4)) | pairs).astype(np.uint8)


def dequantize(packed: Array, scales: Array, bits: int, shape: tuple[int, ...]) -> Array:
    """Give the float32 values that MatMulNBits computes with.

    Args:
        packed: As `quantize` returns it.
        scales: As `quantize` returns it.
        bits: 4 or 8.
        shape: Of the matrix: (…, K).
    """
    integers = packed
    if bits == 4:
        integers = np.stack([packed & 15, packed >> 4], -1)
    *lead, blocks = scales.shape
    values = integers.reshape(*lead, blocks, -1).astype(np.float32)
    values -= np.float32(1 << (bits - 1))
    values *= scales[..., None]
    return values.reshape(*lead, -1)[..., : shape[-1]].reshape(shape)


def round_trip(matrix: Array, storage: Storage, block_size: int = 32) -> Array:
    """Give the float32 values that are left of a float32 tensor once it is stored.

    Args:
        matrix: Float32.
        storage: How it is stored.
        block_size: Columns that share a scale, for int4 and int8.
    """
    if storage in BITS:
        packed, scales = quantize(matrix, BITS[storage], block_size)
        return dequantize(packed, scales, BITS[storage], matrix.shape)
    if storage == "float16":
        half = np.empty(matrix.shape, np.float16)
        to_float16(matrix.copy(), half)
        return half.astype(np.float32)
    if storage == "bfloat16":
        upper = np.empty(matrix.shape, np.uint16)
        to_bfloat16(matrix, upper)
        return to_float32(upper, "BF16")
    return matrix
