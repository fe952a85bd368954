# SPDX-License-Identifier: Apache-2.0
"""Small integers packed in words, small floats, and scales, as parts of tensors."""

import ml_dtypes
import numpy as np

from qeff_zoo.checkpoint.encoded import Encoded, Floats, Part, Stored
from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array, Read
from qeff_zoo.errors import CheckpointError

#: Safetensors dtypes of scales.
FLOATS = ("F16", "BF16", "F32")
_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
#: Safetensors dtypes of floats of 8 bits.
SMALL_FLOATS = ("F8_E4M3", "F8_E5M2")
#: A scale that is a power of two, in 8 bits.
POWER = "F8_E8M0"

_SMALL = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    POWER: ml_dtypes.float8_e8m0fnu,
}
#: Limit of scales, so that no value exceeds float32.
_MOST = np.float32(1e30)
#: Doubled values of E2M1 plus 128, by pairs: that of the low half of an octet is first.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]) + 128
_PAIRS = np.stack([np.tile(_E2M1, 16), np.repeat(_E2M1, 16)], -1).astype(np.uint8)


def unpack(words: Array, bits: int) -> Array:
    """Unpack little-endian fields along the last axis, densely: a field may cross words.

    Args:
        words: int32 or uint32.
        bits: Bits of a field, at most 8.

    Returns:
        uint8; the last axis is `32 / bits` times as long, rounded down in all.
    """
    octets = np.ascontiguousarray(words).view(np.uint8)
    if 32 % bits == 0:
        fields = octets.astype(f"<u{8 // bits}")  # a field's octet each
        for shift in {2: (12, 6), 4: (4,), 8: ()}[bits]:
            fields |= fields << fields.dtype.type(shift)
        return fields.view(np.uint8) & np.uint8((1 << bits) - 1)
    *lead, length = octets.shape
    eights = -(-length // bits)  # of fields, each in as many octets as a field has bits
    padded = np.zeros((*lead, eights * bits), np.uint8)
    padded[..., :length] = octets
    together = np.zeros((*lead, eights, 8), np.uint8)
    together[..., :bits] = padded.reshape(*lead, eights, bits)
    moved = together.view("<u8") >> np.arange(0, 8 * bits, bits, dtype=np.uint64)
    found = moved.astype(np.uint8) & np.uint8((1 << bits) - 1)
    return found.reshape(*lead, 8 * eights)[..., : length * 8 // bits]


def unpack_some(words: Array, bits: int, start: int, stop: int) -> Array:
    """Unpack only fields `start:stop` of the last axis, see `unpack`.

    Args:
        words: int32 or uint32.
        bits: Bits of a field, at most 8.
        start: First field.
        stop: Field after the last.
    """
    first = start // 32  # 32 fields are so many words as a field has bits
    fields = unpack(words[..., first * bits : -(-stop // 32) * bits], bits)
    return fields[..., start - 32 * first : stop - 32 * first]


def finite(scales: Array, info: TensorInfo) -> Array:
    """Return scales after a check that they are finite, and far from the limit of float32.

    Args:
        scales: Any shape, float32.
        info: Stored type of the scales.

    Raises:
        CheckpointError: A scale is not.
    """
    if (np.abs(scales) <= _MOST).all():
        return scales
    raise CheckpointError(
        f"Scales {info.name!r} in {str(info.path)!r} are not all numbers, or go beyond {_MOST:.0e}. Expected finite "
        "ones. Get the file again from its source, or use another checkpoint of the model."
    )


def to_floats(raw: Array, dtype: str) -> Array:
    """Convert to float32 as `to_float32` does, 8-bit floats and int8 too."""
    if dtype in _SMALL:
        small: Array = raw.view(_SMALL[dtype]).astype(np.float32)
        return small
    if dtype == "I8":
        return raw.astype(np.float32)
    return to_float32(raw, dtype)


def float_columns(info: TensorInfo) -> Part:
    """Return a reader of stored scales (groups, rows) as float32 (rows, groups)."""

    def part(read: Read, start: int, stop: int) -> Array:
        raw = np.ascontiguousarray(read(info.name, None, None)[:, start:stop].T)
        return finite(to_floats(raw, info.dtype), info)

    return part


def scales_of_blocks(
    stored: Stored, info: TensorInfo, shape: tuple[int, ...], tall: int, wide: int
) -> Part:
    """Return a reader of rows of block scales as float32 (…, rows, blocks across).

    Args:
        stored: The checkpoint.
        info: The scales, (…, blocks down, blocks across), possibly without trailing axes of length 1.
        shape: Shape of the quantized tensor.
        tall: Rows of a block; the last one may have fewer.
        wide: Columns of a block; the last one may have fewer.

    Raises:
        CheckpointError: The numbers of scales and blocks differ.
    """
    *lead, rows, columns = shape
    grid = (*lead, -(-rows // tall), -(-columns // wide))
    left_out = grid[len(info.shape) :]
    if info.shape != grid[: len(info.shape)] or any(length != 1 for length in left_out):
        raise stored.wrong(f"scales {info.name!r} are {list(info.shape)}", f"{list(grid)}")

    def part(read: Read, start: int, stop: int) -> Array:
        first, last = (start, stop) if lead else (start // tall, -(-stop // tall))
        if not info.shape:  # one for all
            raw = np.broadcast_to(read(info.name, None, None), last - first)
        else:
            raw = read(info.name, first, last)
        scales = to_floats(np.ascontiguousarray(raw).reshape(-1, *grid[1:]), info.dtype)
        if tall > 1:
            inside = slice(0, rows) if lead else slice(start - first * tall, stop - first * tall)
            scales = np.repeat(scales, tall, -2)[..., inside, :]
        return finite(scales, info)

    return part


def small_floats(
    info: TensorInfo, scales: Part, scale: TensorInfo, wide: int, about: str, block_rows: int = 1
) -> Encoded:
    """Return a tensor of 8-bit floats with block scales: `value = float * scale`.

    Args:
        info: The floats, (…, rows, columns).
        scales: Reader of the scales of rows, (…, rows, blocks across).
        scale: Stored type of the scales.
        wide: Columns of a block.
        about: Description for people.
        block_rows: Rows of a block; 0 for one scale of all rows.
    """
    columns = info.shape[-1]

    def values(read: Read, start: int, stop: int) -> Array:
        floats = to_floats(read(info.name, start, stop), info.dtype)
        by_block = scales(read, start, stop)
        floats *= np.repeat(by_block, wide, -1)[..., :columns] if wide < columns else by_block
        return floats

    def octets(read: Read, start: int, stop: int) -> Array:
        return read(info.name, start, stop)

    floats = None
    if scale.dtype in FLOATS and (wide > 1 or columns == 1):
        floats = Floats(
            element=_SMALL[info.dtype].__name__,
            scale=_NAMES[scale.dtype],
            group=wide,
            octets=octets,
            scales=scales,
        )
    return Encoded(
        shape=info.shape,
        sources=(info.name, scale.name),
        about=about,
        values=values,
        floats=floats,
        block_rows=block_rows,
    )


def signed(stored: Stored, info: TensorInfo, bits: int) -> Part:
    """Return a reader of rows of stored int8 as unsigned integers around the middle of a number of bits."""
    middle = np.uint8(1 << (bits - 1))

    def part(read: Read, start: int, stop: int) -> Array:
        raw = read(info.name, start, stop)
        if bits < 8 and raw.size and not -int(middle) <= raw.min() <= raw.max() < middle:
            raise stored.wrong(f"{info.name!r} has integers beyond {bits} bits", "none")
        moved: Array = raw.view(np.uint8) + middle
        return moved

    return part


def twice_e2m1(info: TensorInfo) -> Part:
    """Return a reader of rows of E2M1 pairs, (…, columns / 2) uint8, as integers around 128: the doubled values."""

    def part(read: Read, start: int, stop: int) -> Array:
        octets = read(info.name, start, stop).view(np.uint8)
        return _PAIRS[octets].reshape(*octets.shape[:-1], 2 * octets.shape[-1])

    return part


def halved(scales: Part) -> Part:
    """Return a reader of halved scales."""

    def part(read: Read, start: int, stop: int) -> Array:
        half: Array = scales(read, start, stop) * np.float32(0.5)
        return half

    return part
