# SPDX-License-Identifier: Apache-2.0
"""Functions of a position become rows of tables: float16 has no room for the angle of a far position.

A rotary embedding takes cosines and sines of a position times a frequency. In float16 an angle of 1,000 is known to
half a radian, so that a device that computes in float16 must look its cosine up.
"""

from contextlib import suppress

import numpy as np
import onnx_ir as ir
import onnxruntime

from qeff_zoo.passes import parts
from qeff_zoo.passes.parts import Array
from qeff_zoo.weights.external_data import is_placeholder

#: Ops whose error grows with their input, or that are as wrong as it is.
_OPS = {"Cos", "Sin", "Log", "Exp", "Pow"}
_AT_ONCE = 1024  # positions
_CLOSE = 1e-5  # share of the largest number


def tabulate(graph: ir.Graph, ctx_len: int) -> int:
    """Look up every cosine, sine, logarithm or power of a position, in place.

    Args:
        graph: With `position_ids` (batch, seq); without, nothing changes.
        ctx_len: Positions that there are.

    Returns:
        How many values became rows of a table; those that depend on more than the position are left.
    """
    positions = next((value for value in graph.inputs if value.name == "position_ids"), None)
    if positions is None:
        return 0
    known: dict[ir.Value, bool | None] = {positions: True}
    wanted = [node for node in graph if node.op_type in _OPS and _depends(node.outputs[0], known)]
    tables: dict[bytes, ir.Value] = {}
    count = 0
    safe: ir.Node | None = None
    for node in wanted:
        value = node.outputs[0]
        table, behind = _tabulated(positions, value, ctx_len)
        if table is None:
            continue
        if safe is None:  # padding has position -1
            zero = ir.Value(name="position_table.zero", const_value=ir.tensor(np.int64(0)))
            zero.shape, zero.type = ir.Shape([]), ir.TensorType(ir.DataType.INT64)
            graph.initializers["position_table.zero"] = zero
            safe = ir.node("Max", [positions, zero])
            safe.outputs[0].name = "position_table.rows"
            graph.insert_before(graph[0], [safe])
        rows = ir.node("Gather", [_initializer(graph, table, tables), safe.outputs[0]], {"axis": 0})
        made = [rows]
        if behind:  # (batch, seq, kinds, …) -> (kinds, batch, seq, …)
            order = [2, 0, 1, *range(3, table.ndim + 1)]
            made.append(ir.node("Transpose", rows.outputs, {"perm": order}))
        made[-1].outputs[0].type, made[-1].outputs[0].shape = value.type, value.shape
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], made, [value], made[-1].outputs
        )
        count += 1
    return count


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
            found = [known[one] for one in above]
            known[last] = None if None in found else any(found)
    return known[value]


def _tabulated(positions: ir.Value, value: ir.Value, ctx_len: int) -> tuple[Array | None, bool]:
    """Compute a value of all positions, one row for each; None if it depends on more than the position.

    Returns:
        The rows, and whether the batch is the value's second axis, as of positions of several kinds, not its first.
    """
    at_once = min(_AT_ONCE, -(-ctx_len // 2))
    sizes = {"batch_size": 1, "seq_len": at_once, "ctx_len": ctx_len}
    session = parts.cut([positions], [value], sizes)
    if session is None:
        return None, False
    every = np.arange(ctx_len)
    mixed = np.random.default_rng(0).permutation(every)  # a value must not depend on company
    with suppress(*parts.FAILURES):  # positions beyond a model's table
        for batch_axis in (0, 1):
            rows, others = (_run(session, order, at_once, batch_axis) for order in (every, mixed))
            if rows is None or others is None:
                continue
            if np.abs(rows[mixed] - others).max() <= _CLOSE * np.abs(rows).max():
                return rows, batch_axis == 1
    return None, False


def _run(
    session: onnxruntime.InferenceSession, positions: Array, at_once: int, batch_axis: int
) -> Array | None:
    """Compute a value of that many positions in each call: (positions, …)."""
    padded = np.pad(positions, (0, -len(positions) % at_once))
    found = [parts.run(session, some[None])[0] for some in padded.reshape(-1, at_once)]
    if any(one.shape[batch_axis : batch_axis + 2] != (1, at_once) for one in found):
        return None
    by_position = [np.moveaxis(one, (batch_axis, batch_axis + 1), (0, 1))[0] for one in found]
    return np.concatenate(by_position)[: len(positions)]


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
