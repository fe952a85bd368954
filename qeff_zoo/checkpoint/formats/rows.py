# SPDX-License-Identifier: Apache-2.0
"""Repeated groups of rows of a quantized matrix, as expressions over the tensors that store it; nothing is decoded.

Along the axis of the rows, a stored item belongs to one row, to a block of rows with one scale, or, where integers are
packed along the rows, to the rows whose bits it has.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from qeff_zoo.checkpoint.encoded import Encoded
from qeff_zoo.checkpoint.expressions import concat, cut
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array, Expression
from qeff_zoo.errors import UnsupportedModelError

#: Expression of a stored tensor, or its content.
Repeated: TypeAlias = "Expression | Array"

#: A tensor of compressed-tensors: the shape of the matrix.
_SHAPE = "weight_shape"
_WORD = 32


def repeated(
    encoded: Encoded,
    tensors: Mapping[str, TensorInfo],
    axes: Mapping[str, int | None],
    groups: int,
    times: int,
) -> dict[str, Repeated]:
    """Return the stored tensors of a matrix whose groups of rows are repeated in place: 0, 0, 1, 1, ….

    Args:
        encoded: The matrix.
        tensors: Stored tensors by name.
        axes: Axis of the rows by the end of a stored tensor's name, see `formats.rows_of`.
        groups: Number of groups, equal in size.
        times: Number of copies of each group.

    Raises:
        UnsupportedModelError: A stored item belongs to rows of several groups, or the axis is not known.
    """
    found: dict[str, Repeated] = {}
    for name in encoded.sources:
        end = name.rpartition(".")[2]
        if end == _SHAPE:
            dtype = np.int64 if tensors[name].dtype == "I64" else np.int32
            found[name] = np.array([encoded.shape[0] * times, *encoded.shape[1:]], dtype)
            continue
        if end not in axes:
            raise _refused(encoded, name, "its method does not store rows apart")
        axis, shape = axes[end], tensors[name].shape
        if axis is not None and len(shape) > axis:
            items = _items(encoded, name, shape[axis], groups, times)
            found[name] = concat(axis, *(cut(axis, start, stop, name) for start, stop in items))
    return found


def _items(
    encoded: Encoded, name: str, length: int, groups: int, times: int
) -> list[tuple[int, int]]:
    """Return the stored items, each as start and stop, in their new order."""
    rows, block = encoded.shape[0], encoded.block_rows
    bits = encoded.integers.bits if encoded.integers else 0
    each = length // groups
    if length != rows and block == 0:
        return [(0, length)]
    if length != rows and block > 1:
        return [(old, old + 1) for old in _blocks(encoded, name, groups, times)]
    if length % groups or length not in (rows, rows * bits / _WORD):
        raise _refused(
            encoded, name, f"{rows // groups} rows do not fill whole words of {_WORD} bits"
        )
    return [(group * each, (group + 1) * each) for group in range(groups) for _ in range(times)]


def _blocks(encoded: Encoded, name: str, groups: int, times: int) -> list[int]:
    """Return the old block of each new one; all rows of a new block are of one old block."""
    rows, block = encoded.shape[0], encoded.block_rows
    old_rows = np.arange(rows).reshape(groups, -1).repeat(times, 0).reshape(-1)
    old = [np.unique(old_rows[at : at + block] // block) for at in range(0, rows * times, block)]
    if any(len(one) > 1 for one in old):
        raise _refused(
            encoded, name, f"{block} rows share a scale, and a head has {rows // groups}"
        )
    return [int(one[0]) for one in old]


def _refused(encoded: Encoded, name: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Rows of {name!r} ({encoded.about}) cannot be repeated as they are stored: {why}. Use "
        "`qeff-zoo build --kv-heads`, which needs no such checkpoint."
    )
