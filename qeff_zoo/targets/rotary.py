# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in a graph: recognized, and their cosines and sines tabulated by position."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from qeff_zoo.weights.external_data import is_placeholder

_UNIT = 16  # the kernel turns heads of a multiple of so many numbers
_IR_VERSION = 10


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """`x * cos + rotate_half(x) * sin`, of x (batch, heads, seq, size) and cos, sin (batch, seq, size)."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value


def rotary_of(value: ir.Value) -> Rotary | None:
    """Recognize what was turned: halves against each other, as Llama does."""
    total = _made_by(value, "Add")
    for straight, crossed in (total, total[::-1]) if len(total) == 2 else ():
        for x, cos in _both_ways(_made_by(straight, "Mul")):
            for half, sin in _both_ways(_made_by(crossed, "Mul")):
                angles = _made_by(cos, "Unsqueeze"), _made_by(sin, "Unsqueeze")
                if _is_rotated_half(half, x) and all(_number(one[1:]) == 1 for one in angles):
                    return Rotary(x=x, cos=angles[0][0], sin=angles[1][0])
    return None


def _is_rotated_half(value: ir.Value, x: ir.Value) -> bool:
    """Recognize the second half of x, negated, before the first half."""
    parts = _made_by(value, "Concat")
    if len(parts) != 2:
        return False
    second, first = _made_by(*_made_by(parts[0], "Neg") or [None], "Slice"), _made_by(parts[1], "Slice")
    if not (first and second and first[0] is x and second[0] is x):
        return False
    begin, end, axis = (_number(first[at:]) for at in (1, 2, 3))
    later, last, other = (_number(second[at:]) for at in (1, 2, 3))
    return begin == 0 and end == later and axis == other == 3 and bool(last and end and last >= 2 * end)


@dataclass
class Tables:
    """Cosines and sines of one graph by position, made once for all layers that share them.

    Args:
        graph: Where the tables are put.
        ctx_len: Positions.
    """

    graph: ir.Graph
    ctx_len: int
    _known: dict[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value] | None] = field(
        default_factory=dict
    )

    def of(self, query: Rotary, key: Rotary, width: int) -> tuple[ir.Value, ir.Value] | None:
        """Return cosines and sines (ctx_len, size / 2), or None where they are not a matter of the position alone."""
        angles = query.cos, query.sin
        if angles != (key.cos, key.sin) or width % _UNIT:
            return None
        if angles not in self._known:
            self._known[angles] = self._tabulate(*angles)
        return self._known[angles]

    def _tabulate(self, cos: ir.Value, sin: ir.Value) -> tuple[ir.Value, ir.Value] | None:
        positions = next(value for value in self.graph.inputs if value.name == "position_ids")
        try:
            part = ir.convenience.extract(self.graph, [positions], [cos, sin])
        except ValueError:  # they depend on more
            return None
        if any(map(is_placeholder, part.initializers.values())):
            return None
        for value in part.outputs:
            value.dtype = ir.DataType.FLOAT
        model = ir.to_proto(ir.Model(part, ir_version=_IR_VERSION)).SerializeToString()
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        every = np.arange(self.ctx_len)
        tables = [np.asarray(one[0]) for one in session.run(None, {positions.name: every[None]})]
        # In another order and in other company each position must have the same angle.
        shuffled = np.random.default_rng(0).permutation(every)[:, None]
        again = session.run(None, {positions.name: shuffled})
        half = tables[0].shape[-1] // 2
        if not all(
            np.array_equal(one[shuffled], other) and np.array_equal(one[:, :half], one[:, half:])
            for one, other in zip(tables, again, strict=True)
        ):
            return None
        return self._put("cos", tables[0][:, :half]), self._put("sin", tables[1][:, :half])

    def _put(self, kind: str, table: np.ndarray[Any, Any]) -> ir.Value:
        name = f"rotary.{len(self._known)}.{kind}"
        tensor = ir.tensor(np.ascontiguousarray(table, np.float32), name=name)
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.initializers[name] = value
        return value


def _made_by(value: ir.Value | None, op_type: str) -> list[ir.Value | None]:
    """Return the inputs of the node that made a value, or nothing if it is of another kind."""
    node = value.producer() if value is not None else None
    return list(node.inputs) if node is not None and node.op_type == op_type else []


def _both_ways(pair: list[ir.Value | None]) -> list[list[ir.Value | None]]:
    return [pair, pair[::-1]] if len(pair) == 2 else []


def _number(values: list[ir.Value | None]) -> int | None:
    """Return the first of some inputs if it is one constant number."""
    constant = ir.convenience.get_const_tensor(values[0]) if values and values[0] is not None else None
    return int(constant.numpy().item()) if constant is not None and constant.size == 1 else None
