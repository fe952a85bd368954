# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in a graph, however it computes them: found by trying what turns queries and keys.

Between heads as they are projected and heads as they are attended a graph may do anything with the positions. That
part is cut out and run: if all it does is to turn pairs of numbers by an angle of the position alone, it is a rotary
embedding, and its cosines and sines by position are all that a kernel needs.
"""

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from qeff_zoo.export.domains import SEMANTIC
from qeff_zoo.weights.external_data import is_placeholder

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_IR_VERSION = 10
_UNIT = 16  # the kernel turns a multiple of so many numbers, of heads of such a multiple
_AT_ONCE = 1024  # positions
_CLOSE = 1e-5  # share of the largest number


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How heads are turned, and what they were before.

    Args:
        x: Before: (batch, heads, seq, head size).
        seq_first: Whether heads and seq stand the other way round in `x`.
        cos: Table (ctx_len, half of the turned numbers), an initializer.
        sin: Likewise.
        interleaved: Whether pairs are neighbours; else of the two halves.
    """

    x: ir.Value
    seq_first: bool
    cos: ir.Value
    sin: ir.Value
    interleaved: bool

    def alike(self, other: "Turn") -> bool:
        """Tell whether other heads are turned in the same way."""
        mine, theirs = ((one.cos, one.sin, one.interleaved, one.seq_first) for one in (self, other))
        return mine == theirs


@dataclass
class Turns:
    """Finds the rotary embeddings of one graph; layers that turn alike are tried once and share tables.

    Args:
        graph: Of a decoder; tables become initializers of it.
        ctx_len: Positions that are tabulated.
    """

    graph: ir.Graph
    ctx_len: int
    _tried: dict[Hashable, Any] = field(default_factory=dict)
    _tables: dict[bytes, ir.Value] = field(default_factory=dict)
    _depends: dict[ir.Value, frozenset[str]] = field(default_factory=dict)

    def of(self, heads: ir.Value, count: int, width: int) -> Turn | None:
        """Find out how heads were turned.

        Args:
            heads: What is attended, (batch, heads, seq, head size).
            count: Number of heads.
            width: Head size.

        Returns:
            None if they were not, or by something else than the position alone.
        """
        x = None if width % _UNIT else self._source(heads)
        if x is None:
            return None
        key = (_written(heads, x), count, width)
        if key not in self._tried:
            self._tried[key] = self._try(x, heads, count, width)
        if self._tried[key] is None:
            return None
        cos, sin, interleaved, seq_first = self._tried[key]
        return Turn(
            x=x,
            seq_first=seq_first,
            cos=self._table(cos),
            sin=self._table(sin),
            interleaved=interleaved,
        )

    def _source(self, heads: ir.Value) -> ir.Value | None:
        """Return the nearest value that heads are computed from, apart from positions and constants."""
        ends, seen, todo = list[ir.Value](), set[ir.Value](), [heads]
        while todo:
            value = todo.pop()
            if value not in seen and "content" in self._depends_on(value):
                turned = "position" in self._depends_on(value)
                todo += _inputs(value) if turned else []
                ends += [] if turned else [value]
            seen.add(value)
        source = ends[0] if ends and heads not in ends else None
        # Where all come from is on every path. A list of parts is no heads.
        while source is not None and (
            _is_list(source) or not all(self._leads_to(end, source) for end in ends)
        ):
            source = next(iter(self._above(source)), None)
        return source

    def _leads_to(self, value: ir.Value, source: ir.Value) -> bool:
        if value is source:
            return True
        above = self._above(value)
        return bool(above) and all(self._leads_to(one, source) for one in above)

    def _above(self, value: ir.Value) -> list[ir.Value]:
        """Return the inputs that are no constants, of what a node makes of one value."""
        found = [] if _is_root(value) else _inputs(value)
        return [one for one in found if "content" in self._depends_on(one)]

    def _depends_on(self, value: ir.Value) -> frozenset[str]:
        """Tell whether a value depends on "position", on "content", both or neither."""
        todo = [value]
        while todo:  # a graph is too deep for recursion
            last = todo[-1]
            above = [] if _is_root(last) else _inputs(last)
            unknown = [one for one in above if one not in self._depends]
            todo += unknown
            if not unknown:
                own = {"content": _is_root(last), "position": _is_position(last)}
                self._depends[todo.pop()] = frozenset(kind for kind in own if own[kind]).union(
                    *(self._depends[one] for one in above)
                )
        return self._depends[value]

    def _try(
        self, x: ir.Value, heads: ir.Value, count: int, width: int
    ) -> tuple[Array, Array, bool, bool] | None:
        given = [
            value for value in self.graph.inputs if value.name in ("input_ids", "position_ids")
        ]
        try:
            part = ir.convenience.extract(self.graph, [x, *given], [heads])
        except ValueError:  # it depends on more
            return None
        if any(map(is_placeholder, part.initializers.values())):
            return None
        for value in (output for node in part for output in node.outputs):
            value.type = value.shape = None  # ONNX Runtime finds out
        for value in (part.inputs[0], *part.outputs):
            value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape([None] * 4)
        model = ir.to_proto(ir.Model(part, ir_version=_IR_VERSION)).SerializeToString()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # that it fails may be the answer
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for seq_first in (False, True):
            # Where they stand the other way round, it does not run.
            with suppress(Fail, InvalidArgument, RuntimeException):
                found = _Trial(session, count, width, seq_first).turn(self.ctx_len)
                return found and (*found, seq_first)
        return None

    def _table(self, values: Array) -> ir.Value:
        key = values.tobytes()
        if key not in self._tables:
            name = f"rotary.{len(self._tables)}"
            tensor = ir.tensor(values, name=name)
            kind = ir.TensorType(tensor.dtype)
            table = ir.Value(name=name, shape=ir.Shape(values.shape), type=kind, const_value=tensor)
            self._tables[key] = self.graph.initializers[name] = table
        return self._tables[key]


@dataclass(frozen=True)
class _Trial:
    """Runs what may be a rotary embedding.

    Args:
        session: (x, input_ids, position_ids) -> heads.
        count: Number of heads.
        width: Head size.
        seq_first: Whether x is (batch, seq, heads, head size).
    """

    session: onnxruntime.InferenceSession
    count: int
    width: int
    seq_first: bool

    def turn(self, ctx_len: int) -> tuple[Array, Array, bool] | None:
        """Return cosines, sines, and whether neighbours are pairs; None if it is no rotary embedding."""
        order = np.random.default_rng(0).permutation(ctx_len)  # angles must not depend on company
        x = np.random.default_rng(1).standard_normal((self.count, ctx_len, self.width))
        x = x.astype(np.float32)
        got = self._run(x, order, min(_AT_ONCE, -(-ctx_len // 2)))
        same = np.append((got == x).all((0, 1)), False)  # numbers that no position changes
        turned = self.width - int(np.argmin(same[: self.width][::-1]))
        sizes = sorted({turned, -(-turned // _UNIT) * _UNIT, self.width})
        for size, interleaved in product(sizes, (False, True)):
            if size % _UNIT or size > self.width:
                continue
            first, second = _pairs(size, interleaved)
            ones = np.zeros_like(x)
            ones[..., first] = 1
            table = self._run(ones, np.arange(ctx_len), _AT_ONCE)[0]
            cos, sin = table[:, first], table[:, second]
            expected = x.copy()
            a, b, c, s = x[..., first], x[..., second], cos[order], sin[order]
            expected[..., first], expected[..., second] = a * c - b * s, b * c + a * s
            if np.abs(got - expected).max() <= _CLOSE * np.abs(got).max():
                return np.ascontiguousarray(cos), np.ascontiguousarray(sin), interleaved
        return None

    def _run(self, x: Array, positions: Array, at_once: int) -> Array:
        """Turn (heads, tokens, head size) at positions (tokens), so many in one call."""
        parts = []
        for start in range(0, len(positions), at_once):
            now = slice(start, start + at_once)
            where = positions[None, now]
            given = x[None, :, now]
            given = np.ascontiguousarray(given.swapaxes(1, 2) if self.seq_first else given)
            x_name = self.session.get_inputs()[0].name
            feeds = {x_name: given, "input_ids": np.zeros_like(where), "position_ids": where}
            (heads,) = self.session.run(None, feeds)
            parts.append(heads[0])
        return np.concatenate(parts, axis=1)


def _pairs(size: int, interleaved: bool) -> tuple[slice, slice]:
    if interleaved:
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


def _inputs(value: ir.Value) -> list[ir.Value]:
    """Return the values from which a value is computed; a shape is not."""
    node = value.producer()
    if node is None or node.op_type == "Shape":
        return []
    return [one for one in node.inputs if one is not None]


def _is_list(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "SplitToSequence"


def _is_position(value: ir.Value) -> bool:
    return value.is_graph_input() and value.name == "position_ids"


def _is_root(value: ir.Value) -> bool:
    """Tell whether a value is content by itself: other inputs, and what weights, states or attention make."""
    node = value.producer()
    if node is None:
        return is_placeholder(value) or (value.is_graph_input() and not _is_position(value))
    return node.domain == SEMANTIC or any(map(is_placeholder, _inputs(value)))


def _written(value: ir.Value, x: ir.Value) -> Hashable:
    """Write down how a value is computed from x: equal where the same is done."""
    known: dict[ir.Value, Hashable] = {x: "x"}

    def write(one: ir.Value) -> Hashable:
        if one not in known:
            node, constant = one.producer(), ir.convenience.get_const_tensor(one)
            if constant is not None:
                known[one] = (constant.numpy().tobytes(), tuple(constant.shape.numpy()))
            elif node is None:
                known[one] = one.name
            else:
                attributes = tuple(f"{a.name}={a.value}" for a in node.attributes.values())
                given = [write(other) for other in node.inputs if other is not None]
                known[one] = hash((node.op_type, one.index(), attributes, *given))
        return known[one]

    return write(value)
