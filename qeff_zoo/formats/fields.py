# SPDX-License-Identifier: Apache-2.0
"""Small integers packed in words, and floats, as parts of tensors."""

import numpy as np

from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.formats.encoded import Array, Part
from qeff_zoo.weights.expressions import Read
from qeff_zoo.weights.quantization import to_float32


def unpack(words: Array, bits: int) -> Array:
    """Unpack little-endian fields along the last axis, densely: a field may cross words.

    Args:
        words: int32 or uint32.
        bits: Of a field, at most 8.

    Returns:
        uint8; the last axis is `32 / bits` times as long, rounded down in all.
    """
    words = np.ascontiguousarray(words).view(np.uint32)
    if 32 % bits == 0:
        octets = words.view(np.uint8)
        if bits == 8:
            return octets
        each = np.arange(0, 8, bits, dtype=np.uint8)
        fields = (octets[..., None] >> each) & np.uint8((1 << bits) - 1)
        return fields.reshape(*words.shape[:-1], -1)
    ones = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    ones = ones[..., : ones.shape[-1] // bits * bits].reshape(*ones.shape[:-1], -1, bits)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    found: Array = (ones * weights).sum(-1, dtype=np.uint8)
    return found


def floats(info: TensorInfo) -> Part:
    """Return what reads rows of a stored float tensor as float32."""

    def part(read: Read, start: int, stop: int) -> Array:
        return to_float32(read(info.name, start, stop), info.dtype)

    return part


def float_columns(info: TensorInfo) -> Part:
    """Return what reads columns of a stored float tensor (groups, rows) as float32 (rows, groups)."""

    def part(read: Read, start: int, stop: int) -> Array:
        raw = np.ascontiguousarray(read(info.name, None, None)[:, start:stop].T)
        return to_float32(raw, info.dtype)

    return part
