# SPDX-License-Identifier: Apache-2.0
"""Integers of a quantized checkpoint as kernels want them: bit for bit, only packed anew; and its 8-bit floats.

An expression that leaves rows whole is computed of integers or floats, scales, zero points and offsets alike.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import numpy as np

from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.encoded import Encoded, Integers, Part, SmallFactors
from qeff_zoo.checkpoint.expressions import TensorSource, sources_of
from qeff_zoo.checkpoint.types import Array, Expression
from qeff_zoo.graph.numerics import Format
from qeff_zoo.weights.quantization import Stored, block_count, pack, per_channel

_T = TypeVar("_T")


def read(value: Expression, source: TensorSource, start: int, stop: int, format: Format) -> Stored:
    """Read rows `start:stop` of a matrix, or of a stack of them.

    Args:
        value: Over tensors stored as integers, all alike.
        source: The checkpoint.
        start: First row.
        stop: Row after the last.
        format: Format chosen by `qeff_zoo.weights.storage`.

    Raises:
        ValueError: A scale or a minimum is infinite or not a number.
    """
    if format.element:
        return _floats(value, source, start, stop, format)
    first = _integers(source.encoded[sources_of(value)[0]])
    columns = source.encoded[sources_of(value)[0]].shape[-1]
    groups = -(-columns // first.group)

    def part(which: Callable[[Integers], Part], length: int) -> Array:
        return _part(value, source, start, stop, lambda one: which(_integers(one)), length)

    integers = part(lambda one: one.integers, columns)
    scales = part(lambda one: one.scales, groups)
    zeros = part(lambda one: _there(one.zeros), groups) if first.zeros else None
    offsets = part(lambda one: _there(one.offsets), groups) if first.offsets else None
    if not np.isfinite(scales).all() or (offsets is not None and not np.isfinite(offsets).all()):
        raise ValueError("A scale is infinite or not a number.")
    if format.per_channel:
        return per_channel(integers, np.ascontiguousarray(scales[..., 0], np.float32))
    middle, wanted = 1 << (first.bits - 1), 1 << (format.bits - 1)
    if (
        offsets is not None and zeros is not None and not format.origin
    ):  # as one number, around the middle
        offsets = offsets + (zeros.astype(np.float32) - np.float32(middle)) * scales
    if not format.zero_points and wanted != middle:
        integers = integers + np.uint8(wanted - middle)
    blocks = block_count(columns, format.block)
    times = -(-first.group // format.block)

    def by_block(by_group: Array) -> Array:
        return np.repeat(by_group, times, -1)[..., :blocks]

    filling = blocks * format.block - columns
    if filling:
        last = wanted if zeros is None else by_block(zeros)[..., -1:]
        tail = np.broadcast_to(np.asarray(last, np.uint8), (*integers.shape[:-1], filling))
        integers = np.concatenate([integers, tail], -1)
    data = pack(integers, format.bits)
    data = data.reshape(*data.shape[:-1], blocks, -1)
    if format.super_block:
        return Stored(data, **_small(value, source, start, stop, format, groups))
    dtype = np.dtype(format.scale)
    return Stored(
        data,
        np.ascontiguousarray(by_block(scales), dtype),
        pack(by_block(zeros), format.bits) if format.zero_points and zeros is not None else None,
        None if offsets is None else np.ascontiguousarray(by_block(offsets), dtype),
    )


def _small(
    value: Expression, source: TensorSource, start: int, stop: int, format: Format, groups: int
) -> dict[str, Array]:
    """Read scales and offsets as the products of numbers and halves that a checkpoint has them in."""
    found = {}
    for name in ("scales", "offsets") if format.offsets else ("scales",):

        def factors(one: Encoded, name: str = name) -> SmallFactors:
            small: SmallFactors = getattr(_integers(one), f"small_{name}")
            return small

        supers = groups // format.super_block
        numbers = _part(value, source, start, stop, lambda one: factors(one).numbers, groups)
        halves = _part(value, source, start, stop, lambda one: factors(one).halves, supers)
        found[name] = np.ascontiguousarray(numbers)
        found[f"super_{name}"] = np.ascontiguousarray(halves, np.dtype(format.scale))
    return found


def _floats(
    value: Expression, source: TensorSource, start: int, stop: int, format: Format
) -> Stored:
    """Read rows of 8-bit floats, and their scales in the type that the checkpoint has them in."""
    columns = source.encoded[sources_of(value)[0]].shape[-1]
    groups = block_count(columns, format.block or columns)
    octets = _part(value, source, start, stop, lambda one: _there(one.floats).octets, columns)
    scales = _part(value, source, start, stop, lambda one: _there(one.floats).scales, groups)
    return Stored(np.ascontiguousarray(octets), scales.astype(np.dtype(format.scale), order="C"))


def _integers(encoded: Encoded) -> Integers:
    return _there(encoded.integers)


def _part(
    value: Expression,
    source: TensorSource,
    start: int,
    stop: int,
    which: Callable[[Encoded], Part],
    length: int,
) -> Array:
    """Read rows of one part of quantized tensors.

    Args:
        value: Expression over the tensors.
        source: The checkpoint.
        start: First row.
        stop: Row after the last.
        which: Function that returns the reader of the part.
        length: Length of the part's last axis.
    """
    encoded = {name: source.encoded[name] for name in sources_of(value)}

    def rows(name: str, begin: int | None, end: int | None) -> Array:
        last = encoded[name].shape[0] if end is None else end
        return which(encoded[name])(source.read_stored, begin or 0, last)

    shapes = {
        name: SimpleNamespace(shape=(*one.shape[:-1], length)) for name, one in encoded.items()
    }
    return expressions.rows(_narrowed(value, length), rows, shapes, start, stop)


def order(value: Expression, source: TensorSource) -> Array:
    """Return which input column each stored column is multiplied with, int32.

    Args:
        value: Expression of one matrix whose columns are stored in another order.
        source: The checkpoint.
    """
    (name,) = sources_of(value)
    integers = source.encoded[name].integers
    assert integers is not None
    assert integers.order is not None
    return integers.order(source.read_stored).astype(np.int32)


def _there(part: _T | None) -> _T:
    assert part is not None
    return part


def _narrowed(e: Expression, columns: int) -> Expression:
    """Return the expression for tensors whose last axis has another length."""
    if isinstance(e, str):
        return e
    if e[0] == "reshape":
        return ["reshape", [*e[1][:-1], columns], _narrowed(e[2], columns)]
    return [e[0], *(_narrowed(one, columns) if isinstance(one, list) else one for one in e[1:])]
