# SPDX-License-Identifier: Apache-2.0
"""Functions of positions that have several axes, as row and column of a patch: rows of one table, chosen by each axis.

A rotary embedding of several axes gives some of its frequencies to each. So every number that it computes is a function
of one axis, and where all axes are at the same place, all numbers are those of that place: such rows are the table.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integer
from qeff_zoo.graph.passes.parts import Array

from . import parts

_AT_ONCE = 1021  # positions, and no size of anything else


@dataclass(frozen=True)
class Axes:
    """Positions with several axes, an input of a graph.

    Args:
        value: (axes, batch, tokens), or (patches, axes).
        first: Whether the axes come first.
        count: Number of axes.
        others: Inputs (batch, tokens) that come with them, on which nothing here depends.
    """

    value: ir.Value
    first: bool
    count: int
    others: tuple[ir.Value, ...] = ()

    @classmethod
    def of(cls, value: ir.Value, given: Sequence[ir.Value]) -> "Axes | None":
        """Recognize positions of several axes by their shape; None for others.

        Args:
            value: The positions.
            given: All positions that a graph is given.
        """
        shape = value.shape
        assert shape is not None
        if len(shape) == 3 and isinstance(shape[0], int):
            return cls(value, True, shape[0], tuple(one for one in given if one is not value))
        if len(shape) == 2 and isinstance(shape[1], int) and not isinstance(shape[0], int):
            return cls(value, False, shape[1])
        return None

    def given(self, every: Array) -> Array:
        """Lay out positions (axes, batch, tokens) as the input has them."""
        return every if self.first else every[:, 0].T


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a value is at each position.

    Args:
        rows: (positions, …), without an axis for the batch.
        axis: Position axis of the value; the batch, if there is one, comes before.
        chosen: Choice by axis: which numbers of a row are functions of it, (axes, …); None for positions
            of one axis, or where each axis has a row of its own, in the order of the input.
    """

    rows: Array
    axis: int
    chosen: Array | None = None

    def at(self, every: Array) -> Array:
        """Return the value at positions (axes, batch, tokens), as nodes of `look_up` do."""
        if self.chosen is None:
            whole: Array = self.rows[every]
            return whole
        value: Array = self.rows[every[-1]]
        for axis in reversed(range(len(every) - 1)):
            value = np.where(self.chosen[axis], self.rows[every[axis]], value)
        return value


def tabulate(axes: Axes, value: ir.Value, count: int) -> Table | None:
    """Find the table of a value that is computed from positions alone.

    Args:
        axes: The positions.
        value: Computed from them.
        count: Positions that there are.

    Returns:
        None where a number depends on more than one axis, or on other tokens.
    """
    with suppress(*parts.FAILURES):  # positions beyond a model's table
        return _tabulate(axes, value, count)
    return None


def _tabulate(axes: Axes, value: ir.Value, count: int) -> Table | None:
    numbers = np.minimum(np.arange(count + -count % _AT_ONCE), count - 1)
    same = np.broadcast_to(numbers, (axes.count, 1, len(numbers)))
    result = _run(axes, value, same)
    if result is None or list(result[0].shape).count(_AT_ONCE) != 1:
        return None
    axis = result[0].shape.index(_AT_ONCE)
    batched = axes.first
    if batched and (axis == 0 or result[0].shape[axis - 1] != 1):
        return None

    def rows(every: Array) -> Array:
        computed = np.concatenate(_run(axes, value, every) or [], axis)
        moved = np.moveaxis(computed, axis, 0)[:count]
        return moved.squeeze(axis) if batched else moved

    still = rows(np.zeros_like(same))
    table = rows(same)
    moving = np.arange(axes.count)[:, None, None]
    chosen = np.stack(
        [
            (rows(np.where(moving == number, same, 0)) != still).any(0)
            for number in range(axes.count)
        ]
    )
    if (chosen.sum(0) > 1).any():
        return None
    alike = batched and axis == 2 and _is_alike(table, chosen)
    candidate = Table(
        rows=table[:, 0] if alike else table, axis=axis, chosen=None if alike else chosen
    )
    return candidate if _is_right(axes, value, candidate, count) else None


def _is_alike(rows: Array, chosen: Array) -> bool:
    """Whether every axis of the positions has its own row, and all of them are equal."""
    own = np.eye(len(chosen), dtype=bool).reshape(*[len(chosen)] * 2, *[1] * (chosen.ndim - 2))
    if rows.ndim < 2 or rows.shape[1] != len(chosen):
        return False
    return not (chosen & ~own).any() and bool((rows == rows[:, :1]).all())


def _is_right(axes: Axes, value: ir.Value, table: Table, count: int) -> bool:
    """Try a table where every axis is somewhere else, of two rows of a batch if there is one."""
    shape = axes.count, 2 if axes.first else 1, _AT_ONCE
    every = np.random.default_rng(0).integers(0, count, shape)
    (expected,) = _run(axes, value, every) or [np.zeros(0)]
    actual = table.at(every) if axes.first else table.at(every)[0]
    if table.chosen is not None:
        source, target = _moved(axes, table)
        actual = np.moveaxis(actual, source, target)
    return actual.shape == expected.shape and bool((actual == expected).all())


def _moved(axes: Axes, table: Table) -> tuple[list[int], list[int]]:
    """Return from where to where batch and places move, which a look-up has first."""
    return ([0, 1], [table.axis - 1, table.axis]) if axes.first else ([0], [table.axis])


def _run(axes: Axes, value: ir.Value, every: Array) -> list[Array] | None:
    """Compute a value, so many tokens at a time; None where it depends on more than positions."""
    sizes = {"batch_size": every.shape[1], "seq_len": _AT_ONCE}
    shape = axes.value.shape
    assert shape is not None
    session = parts.cut([axes.value, *axes.others], [value], {**sizes, str(shape[0]): _AT_ONCE})
    if session is None:
        return None
    calls = np.split(every, every.shape[2] // _AT_ONCE, axis=2)
    random = np.random.default_rng()  # what depends on others is never twice the same
    others = [random.integers(0, 1 << 20, (*every.shape[1:2], _AT_ONCE)) for _ in axes.others]
    return [parts.run(session, axes.given(some).astype(np.int64), *others)[0] for some in calls]


def look_up(
    tape: Tape, axes: Axes | None, table: Table, rows: ir.Value, safe: ir.Value
) -> ir.Value:
    """Return a value, looked up.

    Args:
        tape: Gets the nodes.
        axes: The positions, of several axes; None for (batch, seq).
        table: Table of the value.
        rows: An initializer with its rows.
        safe: The positions, with none that is negative.
    """
    if axes is None or table.chosen is None:
        looked_up = tape.op("Gather", [rows, safe], {"axis": 0})
        moves = ([0, 1], [table.axis - 1, table.axis]) if axes is None else ([], [])
        return _moved_value(tape, looked_up, table.rows.ndim + 1, moves)

    def at(place: int) -> ir.Value:
        number = integer(tape, place)
        one = tape.op("Gather", [safe, number], {"axis": 0 if axes.first else 1})
        return tape.op("Gather", [rows, one], {"axis": 0})

    looked_up = at(axes.count - 1)
    for axis in reversed(range(axes.count - 1)):
        of_axis = tape.op("Constant", [], {"value": ir.tensor(table.chosen[axis])})
        looked_up = tape.op("Where", [of_axis, at(axis), looked_up])
    return _moved_value(tape, looked_up, table.rows.ndim + axes.first, _moved(axes, table))


def _moved_value(
    tape: Tape, value: ir.Value, rank: int, moves: tuple[list[int], list[int]]
) -> ir.Value:
    """Move axes as `numpy.moveaxis` does."""
    source, target = moves
    order = [number for number in range(rank) if number not in source]
    for at, one in sorted(zip(target, source, strict=True)):
        order.insert(at, one)
    return tape.op("Transpose", [value], {"perm": order}) if order != sorted(order) else value
