# SPDX-License-Identifier: Apache-2.0
"""HQQ as safetensors: integers in groups of columns, with zero points that are fractions.

    W_q (groups / fields, group) uint8, or int32 for 3 bits: field f of word w, counted from the highest bits, is of
        group f * len(W_q) + w; groups are those of the first row, then of the second
    scale, zero (groups, 1) floats: `value = (integer - zero) * scale`
    shape, axis, group_size, packing, … each as a tensor

Source: https://github.com/dropbox/hqq, `core/quantize.py`, `core/bitpack.py`.
"""

from typing import Any

import numpy as np

from qeff_zoo.checkpoint.encoded import Encoded, Encodings, Integers, Stored, of_integers
from qeff_zoo.checkpoint.formats.fields import FLOATS, finite, scales_of_blocks
from qeff_zoo.checkpoint.types import Array, Read
from qeff_zoo.errors import UnsupportedModelError

#: `packing` -> type of a word, fields of it, bits of a field.
_PACKINGS: dict[str, tuple[Any, int, int]] = {
    "8bit_u8": (np.uint8, 1, 8),
    "4bit_u8": (np.uint8, 2, 4),
    "3bit_32": (np.uint32, 10, 3),
    "2bit_u8": (np.uint8, 4, 2),
}


def encodings(stored: Stored) -> Encodings:
    """Find the matrices of an HQQ checkpoint."""
    return Encodings(
        encoded={f"{path}.weight": _matrix(stored, path) for path in stored.modules("W_q")}
    )


def _matrix(stored: Stored, path: str) -> Encoded:
    axis = stored.read(stored.tensor(f"{path}.axis", ("I32", "I64"), ()).name, None, None)
    packing = stored.tensor(f"{path}.packing", ("U8",))
    name = stored.read(packing.name, None, None).tobytes().decode("latin1")
    if axis != 1 or name not in _PACKINGS:
        raise UnsupportedModelError(
            f"{stored.name!r} has {path!r} of HQQ packed as {name!r} along axis {int(axis)}. Expected axis 1, and "
            f"{', '.join(_PACKINGS)}. Use the unquantized checkpoint, or another of the model."
        )
    word, fields, bits = _PACKINGS[name]
    weight = stored.matrix(f"{path}.W_q", ("U8", "I32", *FLOATS))
    length = stored.tensor(f"{path}.shape", ("I64",), (2,))
    rows, columns = stored.read(length.name, None, None).tolist()
    words = weight.shape[0]
    group = weight.nbytes // words // np.dtype(word).itemsize
    across = columns // max(group, 1)
    if (
        min(rows, columns, group) < 1
        or columns % group
        or weight.nbytes != words * group * np.dtype(word).itemsize
        or words != -(-rows * across // fields)
    ):
        raise stored.wrong(
            f"{weight.name!r} is {list(weight.shape)} for {[rows, columns]}",
            "whole groups of columns",
        )
    scale = stored.tensor(f"{path}.scale", FLOATS, (rows * across, 1))
    zero = stored.tensor(f"{path}.zero", FLOATS, (rows * across, 1))
    flat = (rows * across, group)
    scales_of_groups = scales_of_blocks(stored, scale, flat, 1, group)
    zeros_of_groups = scales_of_blocks(stored, zero, flat, 1, group)

    def integers(read: Read, start: int, stop: int) -> Array:
        wanted = np.arange(start * across, stop * across)
        packed = read(weight.name, None, None).view(word)[wanted % words]
        shifts = (bits * (fields - 1 - wanted // words)).astype(word)
        found = (packed >> shifts[:, None]) & word((1 << bits) - 1)
        rows_of: Array = found.astype(np.uint8).reshape(stop - start, columns)
        return rows_of

    def scales(read: Read, start: int, stop: int) -> Array:
        return scales_of_groups(read, start * across, stop * across).reshape(-1, across)

    def offsets(read: Read, start: int, stop: int) -> Array:
        zeros = zeros_of_groups(read, start * across, stop * across).reshape(-1, across)
        with np.errstate(over="ignore"):
            return finite((zeros - np.float32(1 << (bits - 1))) * scales(read, start, stop), zero)

    about = Integers(bits=bits, group=group, integers=integers, scales=scales, offsets=offsets)
    names = (
        name
        for name in stored.tensors
        if name.rpartition(".")[0] == path and not name.endswith(".bias")
    )
    return of_integers((rows, columns), (weight.name, *sorted({*names} - {weight.name})), about)
