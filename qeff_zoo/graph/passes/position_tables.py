# SPDX-License-Identifier: Apache-2.0
"""Functions of a position become rows of tables: float16 has no room for the angle of a far position.

A rotary embedding takes cosines and sines of a position times a frequency. In float16 an angle of 1,000 is known to
half a radian, so that a device that computes in float16 must look its cosine up.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnx_ir.tape import Tape

from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.passes.parts import Array
from qeff_zoo.graph.passes.position_axes import Axes, Table, look_up
from qeff_zoo.graph.passes.position_axes import tabulate as tabulated

from . import parts

#: Ops whose error grows with their input, or that are as wrong as it is.
_OPS = {"Cos", "Sin", "Log", "Exp", "Pow"}
_AT_ONCE = 1024  # positions
_CLOSE = 1e-5  # share of the largest number


#: Inputs: of tokens or patches, and of tokens whose rotary embedding has several axes.
_POSITIONS = ("position_ids", "rope_positions")
#: Of an audio window: its number, by which it finds its times in a table of all windows.
_NUMBER = "window_ids"


def tabulate(graph: ir.Graph, ctx_len: int) -> int:
    """Look up every cosine, sine, logarithm or power of a position, in place.

    Args:
        graph: With `position_ids` (batch, seq), or with others that have several axes, or with `window_ids` (1,);
            without, nothing changes.
        ctx_len: Positions that there are.

    Returns:
        How many values became rows of a table; those that depend on more than the position are left.
    """
    tables: dict[bytes, ir.Value] = {}
    given = [value for value in graph.inputs if value.name in _POSITIONS]
    count = sum(_tabulate(graph, positions, given, ctx_len, tables) for positions in given)
    numbers = [value for value in graph.inputs if value.name == _NUMBER]
    return count + sum(_tabulate_windows(graph, number, tables) for number in numbers)


def _tabulate(
    graph: ir.Graph,
    positions: ir.Value,
    given: Sequence[ir.Value],
    ctx_len: int,
    tables: dict[bytes, ir.Value],
) -> int:
    axes = Axes.of(positions, given)
    # Positions of all kinds may have been put together, and taken apart again.
    known: dict[ir.Value, bool | None] = dict.fromkeys(given if axes else [positions], True)
    wanted = [node for node in graph if node.op_type in _OPS and _depends(node.outputs[0], known)]
    count = 0
    safe: ir.Value | None = None
    for node in wanted:
        value = node.outputs[0]
        table = tabulated(axes, value, ctx_len) if axes else _of_one(positions, value, ctx_len)
        if table is None:
            continue
        if safe is None:  # padding has position -1
            safe = _without_padding(graph, positions)
        tape = Tape()
        looked_up = look_up(tape, axes, table, _initializer(graph, table.rows, tables), safe)
        looked_up.type, looked_up.shape = value.type, value.shape
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], tape.nodes, [value], [looked_up]
        )
        count += 1
    return count


def _tabulate_windows(graph: ir.Graph, number: ir.Value, tables: dict[bytes, ir.Value]) -> int:
    """Look up what depends on the number of a window alone."""
    known: dict[ir.Value, bool | None] = {number: True}
    nodes = [node for node in graph if _depends(node.outputs[0], known)]
    times = next(node.inputs[0] for node in nodes if node.op_type == "Gather")
    assert times is not None
    assert times.const_value is not None
    every = np.arange(len(times.const_value.numpy()))
    count = 0
    for node in (other for other in nodes if other.op_type in _OPS):
        session = parts.cut([number], node.outputs, {})
        if session is None:
            continue
        rows = np.concatenate([parts.run(session, every[at : at + 1])[0] for at in every])
        (value,), tape = node.outputs, Tape()
        looked_up = tape.op("Gather", [_initializer(graph, rows, tables), number], {"axis": 0})
        looked_up.type, looked_up.shape = value.type, value.shape
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], tape.nodes, [value], [looked_up]
        )
        count += 1
    return count


def _without_padding(graph: ir.Graph, positions: ir.Value) -> ir.Value:
    zero = graph.initializers.get("position_table.zero")
    if zero is None:
        zero = ir.Value(name="position_table.zero", const_value=ir.tensor(np.int64(0)))
        zero.shape, zero.type = ir.Shape([]), ir.TensorType(ir.DataType.INT64)
        graph.initializers["position_table.zero"] = zero
    safe = ir.node("Max", [positions, zero])
    safe.outputs[0].name = f"position_table.{positions.name}"
    graph.insert_before(graph[0], [safe])
    return safe.outputs[0]


def _of_one(positions: ir.Value, value: ir.Value, ctx_len: int) -> Table | None:
    """Find the table of a value of positions with one axis: its rows are (batch, seq, …), or (…, batch, seq, …)."""
    table = by_position(positions, [value], ctx_len)
    if table is None:
        return None
    (rows,), batch_axis = table
    return Table(rows=rows, axis=batch_axis + 1)


def _depends(value: ir.Value, known: dict[ir.Value, bool | None]) -> bool | None:
    """Return True for a value of positions alone, False for a constant, None for anything else."""
    todo = [value]
    while todo:  # a graph is too deep for recursion
        last = todo[-1]
        node = last.producer()
        above = [one for one in node.inputs if one is not None] if node is not None else []
        unknown = [one for one in above if one not in known]
        if last in known:
            todo.pop()
        elif node is None:
            given = last.is_graph_input() or is_placeholder(last)
            known[last] = None if given or last.const_value is None else False
        elif node.op_type == "Shape":
            known[last] = False
        elif unknown:
            todo += unknown
        else:
            dependences = [known[one] for one in above]
            known[last] = None if None in dependences else any(dependences)
    return known[value]


def by_position(
    positions: ir.Value, values: Sequence[ir.Value], ctx_len: int
) -> tuple[list[Array], int] | None:
    """Compute values of all positions, one row for each.

    Args:
        positions: (batch, seq), an input.
        values: Computed from it.
        ctx_len: Positions that there are.

    Returns:
        Of each value (positions, …), and which of its axes is the batch: the first, or the second, as of positions of
        several kinds. None if a value depends on more than the position.
    """
    at_once = min(_AT_ONCE, -(-ctx_len // 2))
    sizes = {"batch_size": 1, "seq_len": at_once, "ctx_len": ctx_len}
    session = parts.cut([positions], values, sizes)
    if session is None:
        return None
    every = np.arange(ctx_len)
    mixed = np.random.default_rng(0).permutation(every)  # a value must not depend on company
    # Positions may lie beyond a model's table; and what is not finite is no table.
    with suppress(*parts.FAILURES), np.errstate(invalid="ignore"):
        for batch_axis in (0, 1):
            rows, others = (_run(session, order, at_once, batch_axis) for order in (every, mixed))
            if rows is None or others is None:
                continue
            pairs = zip(rows, others, strict=True)
            if all(
                np.abs(one[mixed] - other).max() <= _CLOSE * np.abs(one).max()
                for one, other in pairs
            ):
                return rows, batch_axis
    return None


def _run(
    session: onnxruntime.InferenceSession, positions: Array, at_once: int, batch_axis: int
) -> list[Array] | None:
    """Compute values of that many positions in each call: (positions, …) each."""
    padded = np.pad(positions, (0, -len(positions) % at_once))
    calls = [parts.run(session, some[None]) for some in padded.reshape(-1, at_once)]
    axes, computed = (batch_axis, batch_axis + 1), []
    for values in zip(*calls, strict=True):
        if any(value.shape[batch_axis : batch_axis + 2] != (1, at_once) for value in values):
            return None
        rows = [np.moveaxis(value, axes, (0, 1))[0] for value in values]
        computed.append(np.concatenate(rows)[: len(positions)])
    return computed


def _initializer(graph: ir.Graph, rows: Array, tables: dict[bytes, ir.Value]) -> ir.Value:
    key = rows.tobytes()
    if key not in tables:
        name = f"position_table.{len(tables)}"
        tensor = ir.tensor(np.ascontiguousarray(rows), name=name)
        table = ir.Value(
            name=name,
            shape=ir.Shape(rows.shape),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        tables[key] = graph.initializers[name] = table
    return tables[key]
