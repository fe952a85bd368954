# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings become one semantic op, however a model computes them: they are recognized by running them.

Between the projection of heads and their attention a graph may do anything with the positions. That part is cut out and
run: if all it does is to rotate pairs of numbers by an angle that is the same for all heads, it is a rotary embedding.
The part that computes cosines and sines from the positions stays and feeds the op.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integers
from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.passes.parts import Array
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.graph.semantic.rotary import name_of

from . import parts

_BATCH, _SEQ, _OTHER = 2, 13, 29  # sizes of what is tried: batch_size, seq_len, all others
_FARTHEST = (1 << 17, 1 << 10, 1 << 6, 1 << 4)  # positions to try, as far as a model has them
_UNIT = 16  # sizes to try beside those that show
_CLOSE = 1e-5  # share of the largest number
#: Whether pairs are interleaved before and after. DeepSeek V3 has them interleaved before and in halves after.
_LAYOUTS_OF_PAIRS = ((False, False), (True, True), (True, False))
_HEADS_FIRST = [0, 2, 1, 3]  # (batch, seq, heads, size) -> (batch, heads, seq, size)
#: Ops that change no number: cosines are the same before and after them.
_LAYOUT = {"Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Tile"}
_LAYOUT |= {"Squeeze", "Transpose", "Unsqueeze"}


def recognize(model: ir.Model) -> int:
    """Replace every rotary embedding of a decoder; return how many there are.

    Args:
        model: Traced model: values of layers have shapes, and only semantic ops read weights.
    """
    positions = [value for value in model.graph.inputs if value.name == "position_ids"]
    if not positions:
        return 0
    finder = _Finder(model.graph, positions[0])
    semantic = [node for node in model.graph if node.domain == SEMANTIC]
    return sum(finder.replace(value) for node in semantic for value in node.inputs)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Where cosines or sines are: in some columns of a value, perhaps negated.

    Args:
        value: Computed from positions alone.
        shape: Shape of `value` in the trial: batch or 1 or nothing, then seq, then columns; anywhere between, ones.
        columns: The first, the one after the last, and the step.
        negative: Whether they are negated.
    """

    value: ir.Value
    shape: tuple[int, ...]
    columns: tuple[int, int, int]
    negative: bool


@dataclass(frozen=True, kw_only=True)
class _Rotation:
    """How heads are rotated.

    Args:
        size: Numbers of a head that are rotated.
        given_interleaved: Whether pairs are interleaved before; else a pair has one number of each half.
        interleaved: Whether they are interleaved afterwards.
        cos: (batch, seq, size / 2).
        sin: Likewise.
    """

    size: int
    given_interleaved: bool
    interleaved: bool
    cos: Array
    sin: Array


@dataclass
class _Finder:
    """Finds and replaces the rotary embeddings of one graph.

    Args:
        graph: Changed in place.
        positions: Input `position_ids` of the graph.
    """

    graph: ir.Graph
    positions: ir.Value
    _visited: set[ir.Value] = field(default_factory=set)
    _depends: dict[ir.Value, frozenset[str]] = field(default_factory=dict)
    _tables: dict[_Table, ir.Value] = field(default_factory=dict)

    def replace(self, value: ir.Value | None) -> int:
        """Replace what rotates a value, or what it is made of; return how many places that were."""
        count, todo = 0, [] if value is None else [value]
        while todo:
            heads = todo.pop()
            if heads in self._visited or len(self._depends_on(heads)) < 2:
                continue
            self._visited.add(heads)
            if self._replace(heads):
                count += 1
            else:
                todo += _inputs(heads)
        return count

    def _replace(self, heads: ir.Value) -> bool:
        """Replace a rotation of heads (batch, heads, seq, head size); return whether it was one."""
        shape, last = _dims(heads), heads.producer()
        if last is None or len(shape) != 4 or shape[2] != _dims(self.positions)[1]:
            return False
        x, count, width = self._source(heads), shape[1], shape[3]
        if x is None or not isinstance(count, int) or not isinstance(width, int):
            return False
        seq_first = _dims(x) == [shape[place] for place in _HEADS_FIRST]
        if not seq_first and _dims(x) != shape:
            return False
        candidates = list(dict.fromkeys(self._candidates(heads, x)))
        session = parts.cut([x, self.positions], [heads, *candidates], self._sizes)
        if session is None:
            return False
        trial = _Trial(session, count, width, seq_first)
        rotation, values = trial.rotation()
        if rotation is None:
            return False
        by_value = list(zip(candidates, values, strict=True))
        tables = [_find(by_value, wanted) for wanted in (rotation.cos, rotation.sin)]
        if tables[0] is None or tables[1] is None:
            return False
        cos, sin = (self._table(table) for table in tables)  # type: ignore[arg-type]
        tape = Tape()
        x = tape.op("Transpose", [x], {"perm": _HEADS_FIRST}) if seq_first else x
        if rotation.given_interleaved != rotation.interleaved:
            x = _in_halves(tape, x, rotation.size, width)
        rotated = tape.op(
            name_of(interleaved=rotation.interleaved, partial=rotation.size < width),
            [x, cos, sin],
            {"interleaved": int(rotation.interleaved), "rotary_embedding_dim": rotation.size},
            domain=SEMANTIC,
        )
        rotated.type, rotated.shape = heads.type, heads.shape
        _name(tape, f"{heads.name}_rotary")
        for node in tape.nodes:
            node.metadata_props.update(last.metadata_props)
        self.graph.insert_before(last, tape.nodes)
        ir.convenience.replace_all_uses_with(heads, rotated)
        return True

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Sizes of all symbols, as they are tried."""
        every = {str(dim): _OTHER for value in self.graph.inputs for dim in _dims(value)}
        batch, seq = map(str, _dims(self.positions))
        return {**every, batch: _BATCH, seq: _SEQ}

    def _source(self, heads: ir.Value) -> ir.Value | None:
        """Return the nearest value that heads are computed from, apart from positions and constants."""
        ends, visited, todo = list[ir.Value](), set[ir.Value](), [heads]
        while todo:
            value = todo.pop()
            if value not in visited and "content" in self._depends_on(value):
                rotated = "position" in self._depends_on(value)
                todo += _inputs(value) if rotated else []
                ends += [] if rotated else [value]
            visited.add(value)
        source = ends[0] if ends and heads not in ends else None
        # What all come from is on every path. A list of parts is not heads.
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
        """Return the inputs that are not constants, of a node that transforms one value."""
        inputs = [] if _is_root(value) else _inputs(value)
        return [one for one in inputs if "content" in self._depends_on(one)]

    def _depends_on(self, value: ir.Value) -> frozenset[str]:
        """Return whether a value depends on "position", on "content", both or neither."""
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

    def _candidates(self, heads: ir.Value, x: ir.Value) -> Iterator[ir.Value]:
        """Yield what may be cosines and sines: what heads meet on their way from x, and what that is a layout of."""
        visited, todo = {x}, [heads]
        while todo:
            value = todo.pop()
            if value in visited:
                continue
            visited.add(value)
            node, depends = value.producer(), self._depends_on(value)
            if "content" in depends:
                todo += _inputs(value)
            elif "position" in depends and node is not None:
                if value.dtype == ir.DataType.FLOAT:
                    yield value
                todo += _inputs(value) if node.op_type in _LAYOUT else []

    def _table(self, table: _Table) -> ir.Value:
        """Return cosines or sines as the op takes them, (batch or 1, seq, pairs)."""
        if table not in self._tables:
            tape, value = Tape(), table.value
            ones = _ones(table.shape)
            if len(table.shape) == 2:
                value = tape.op("Unsqueeze", [value, integers(tape, 0)])
            elif ones:
                value = tape.op("Squeeze", [value, integers(tape, *ones)])
            start, end, step = table.columns
            if (start, end, step) != (0, table.shape[-1], 1):
                given = [integers(tape, one) for one in (start, end, -1, step)]
                value = tape.op("Slice", [value, *given])
            value = tape.op("Neg", [value]) if table.negative else value
            _name(tape, f"{table.value.name}_table{len(self._tables)}")
            producer = table.value.producer()
            assert producer is not None
            self.graph.insert_after(producer, tape.nodes)
            self._tables[table] = value
        return self._tables[table]


@dataclass(frozen=True)
class _Trial:
    """Runs what may be a rotary embedding.

    Args:
        session: (x, position_ids) -> heads, and candidates for cosines and sines.
        count: Number of heads.
        width: Head size.
        seq_first: Whether x is (batch, seq, heads, head size).
    """

    session: Any
    count: int
    width: int
    seq_first: bool

    def rotation(self) -> tuple[_Rotation | None, list[Array]]:
        """Return how heads are rotated, if they are, and what the candidates were meanwhile."""
        x = np.random.default_rng(0).standard_normal((_BATCH, self.count, _SEQ, self.width))
        x = x.astype(np.float32)
        for farthest in _FARTHEST:
            positions = np.random.default_rng(1).integers(0, farthest, (_BATCH, _SEQ))
            with suppress(*parts.FAILURES):  # farther than a model's table
                heads, *values = self._run(x, positions)
                return self._explain(x, positions, heads), values
        return None, []

    def _explain(self, x: Array, positions: Array, heads: Array) -> _Rotation | None:
        if heads.shape != x.shape or not x.size:
            return None
        same = np.append((heads == x).all((0, 1, 2)), False)  # numbers that no position changes
        rotated = self.width - int(np.argmin(same[: self.width][::-1]))
        sizes = sorted({rotated, -(-rotated // _UNIT) * _UNIT, self.width})
        for size, (before, after) in product(sizes, _LAYOUTS_OF_PAIRS):
            if size % 2 or not 0 < size <= self.width:
                continue
            (first, second), (to_first, to_second) = _pairs(size, before), _pairs(size, after)
            ones = np.zeros_like(x)
            ones[..., first] = 1
            table = self._run(ones, positions)[0][:, :1]  # of one head: all are rotated alike
            cos, sin = table[..., to_first], table[..., to_second]
            expected = x.copy()
            a, b = x[..., first], x[..., second]
            expected[..., to_first], expected[..., to_second] = a * cos - b * sin, b * cos + a * sin
            if np.abs(heads - expected).max() <= _CLOSE * np.abs(heads).max():
                return _Rotation(
                    size=size,
                    given_interleaved=before,
                    interleaved=after,
                    cos=cos[:, 0],
                    sin=sin[:, 0],
                )
        return None

    def _run(self, x: Array, positions: Array) -> list[Array]:
        given = np.ascontiguousarray(x.swapaxes(1, 2)) if self.seq_first else x
        return parts.run(self.session, given, positions)


def _pairs(size: int, interleaved: bool) -> tuple[slice, slice]:
    if interleaved:
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


def _find(candidates: list[tuple[ir.Value, Array]], wanted: Array) -> _Table | None:
    """Find (batch, seq, pairs) among the columns of what was computed; of several the one that needs least."""
    pairs = wanted.shape[2]
    tables = []
    for value, array in candidates:
        if array.ndim < 2 or array.shape[-1] not in (pairs, 2 * pairs):
            continue
        rows = array.squeeze(_ones(array.shape))
        if (
            rows.shape[-2] != _SEQ
            or rows.ndim > 3
            or (rows.ndim == 3 and len(rows) not in (1, _BATCH))
        ):
            continue
        whole = array.shape[-1]
        for columns in ((0, pairs, 1), (pairs, whole, 1), (0, whole, 2), (1, whole, 2)):
            some = rows[..., slice(*columns)]
            if some.shape[-1] != pairs:
                continue
            for negative in (False, True):
                if np.array_equal(
                    np.broadcast_to(-some if negative else some, wanted.shape), wanted
                ):
                    table = _Table(
                        value=value, shape=array.shape, columns=columns, negative=negative
                    )
                    tables.append((negative, whole != pairs, array.ndim != 3, table))
    return min(tables, key=lambda entry: entry[:3], default=(None,))[-1]


def _ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes between batch and columns that are 1, such that three axes are left."""
    ones = [axis for axis in range(1, len(shape) - 1) if shape[axis] == 1]
    return tuple(ones[: len(shape) - 3]) if len(shape) > 3 else ()


def _in_halves(tape: Tape, x: ir.Value, size: int, width: int) -> ir.Value:
    """Put interleaved pairs into halves; leave the numbers beyond `size`."""
    slices = [(0, size, 2), (1, size, 2), *([(size, width, 1)] if size < width else [])]
    cut = [[integers(tape, one) for one in (start, end, -1, step)] for start, end, step in slices]
    return tape.op("Concat", [tape.op("Slice", [x, *given]) for given in cut], {"axis": -1})


def _name(tape: Tape, name: str) -> None:
    for number, value in enumerate(value for node in tape.nodes for value in node.outputs):
        value.name = f"{name}.{number}"


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
    """Whether a value is content by itself: another input, or the output of weights, states or attention."""
    node = value.producer()
    if node is None:
        return is_placeholder(value) or (value.is_graph_input() and not _is_position(value))
    return node.domain == SEMANTIC or any(map(is_placeholder, _inputs(value)))


def _dims(value: ir.Value) -> list[int | str]:
    return [dim if isinstance(dim, int) else str(dim) for dim in value.shape or ()]
