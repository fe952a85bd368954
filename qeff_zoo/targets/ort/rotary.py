# SPDX-License-Identifier: Apache-2.0
"""Tables of cosines and sines by position, as kernels of ONNX Runtime take a rotary embedding."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from qeff_zoo.graph.passes import position_tables
from qeff_zoo.graph.passes.parts import Array
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.graph.semantic.rotary import ROTARY_EMBEDDINGS

_UNIT = 16  # the numbers that the kernel rotates, and the head size, are multiples of it
_OPS = {op.name for op in ROTARY_EMBEDDINGS}


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """How heads are rotated, and what they were before.

    Args:
        x: Before: (batch, heads, seq, head size).
        cos: Table (ctx_len, half of the rotated numbers), an initializer.
        sin: Likewise.
        interleaved: Whether pairs are interleaved; else a pair has one number of each half.
    """

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool

    def alike(self, other: "Rotary") -> bool:
        """Whether other heads are rotated in the same way."""
        mine, that = ((one.cos, one.sin, one.interleaved) for one in (self, other))
        return mine == that


@dataclass
class Tables:
    """Tabulates the rotary embeddings of one graph; those that are equal share tables.

    Args:
        graph: Graph of a decoder, which gets the tables as initializers.
        ctx_len: Positions that are tabulated.
    """

    graph: ir.Graph
    ctx_len: int
    _tabulated: dict[tuple[ir.Value, ir.Value], tuple[Array, Array] | None] = field(
        default_factory=dict
    )
    _tables: dict[bytes, ir.Value] = field(default_factory=dict)

    def of(self, heads: ir.Value, width: int) -> Rotary | None:
        """Find out how heads are rotated.

        Args:
            heads: Heads of an attention, (batch, heads, seq, head size).
            width: Head size.

        Returns:
            None if they are not rotated, by an angle that depends on more than the position, or as no kernel does it.
        """
        node = heads.producer()
        if node is None or node.domain != SEMANTIC or node.op_type not in _OPS or width % _UNIT:
            return None
        x, cos, sin = node.inputs
        size, interleaved = (
            node.attributes.get_int(name, 0) for name in ("rotary_embedding_dim", "interleaved")
        )
        if x is None or cos is None or sin is None or (size % _UNIT and not interleaved):
            return None
        if (cos, sin) not in self._tabulated:
            self._tabulated[cos, sin] = self._tabulate(cos, sin)
        pair = self._tabulated[cos, sin]
        if pair is None:
            return None
        # Interleaved pairs after those that are rotated are rotated by an angle of 0.
        more = ((0, 0), (0, -size % _UNIT // 2))
        tables = (np.pad(pair[0], more, constant_values=1), np.pad(pair[1], more))
        named = [self._table(table) for table in tables]
        return Rotary(x=x, cos=named[0], sin=named[1], interleaved=bool(interleaved))

    def _tabulate(self, cos: ir.Value, sin: ir.Value) -> tuple[Array, Array] | None:
        """Compute cosines and sines of all positions; None if they depend on more than the position."""
        positions = next(value for value in self.graph.inputs if value.name == "position_ids")
        table = position_tables.by_position(positions, [cos, sin], self.ctx_len)
        if table is None or table[1]:
            return None
        (cosines, sines), _ = table
        return cosines, sines

    def _table(self, values: Array) -> ir.Value:
        values = np.ascontiguousarray(values)
        key = values.tobytes()
        if key not in self._tables:
            name = f"rotary.{len(self._tables)}"
            tensor = ir.tensor(values, name=name)
            kind = ir.TensorType(tensor.dtype)
            table = ir.Value(name=name, shape=ir.Shape(values.shape), type=kind, const_value=tensor)
            self._tables[key] = self.graph.initializers[name] = table
        return self._tables[key]
