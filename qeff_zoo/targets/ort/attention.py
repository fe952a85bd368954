# SPDX-License-Identifier: Apache-2.0
"""Cache writes, attention and rotary embedding become one kernel of ONNX Runtime, GroupQueryAttention.

It writes new keys and values in place and reads the tokens that are there, not all rows of the cache. It requires of
a call what `runtime.decoding.decoder` guarantees: a row's tokens come first and follow one another, padding comes
after them, and a call of several tokens for several rows begins at position 0. What padding writes is overwritten
before it is read. A graph whose attentions are all of this kind needs no list of compute contexts, and loses that
input.

The cache of a window has a few rows more than the window: the kernel keeps the newest tokens in order at its
beginning, and moves them when it is full. There padding would push tokens out. So the columns of a call that are
padding in all rows are cut off before anything is computed, and rows of different lengths have to come one by one.

Keys and values that several attentions read, or whose queries are those of some tokens alone (SwiftKV), are written
before, at the same rows, and the kernel is given no new ones.

If every query attends to every key, as in images and audio, it is MultiHeadAttention, which keeps no scores of pairs.

An attention of another kind (another mask, a state that is not a plain cache) keeps its portable body.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import array_of, integer, integers
from qeff_zoo.graph.semantic import domains
from qeff_zoo.graph.states import state_of
from qeff_zoo.targets.ort.rotary import Tables

from . import heads

_CONTRIB = "com.microsoft"
_OPS = ("Attention", "SoftcapAttention", "SinkAttention")
_WINDOWS = ("WindowMask", "HeldMask")
_SPREADS = ("Cast", "CastLike", "Expand")  # what they make of zeros is zeros
_NOTHING: Mapping[ir.Value, ir.Value] = {}
_UNIT = 8  # of head sizes that the kernel takes
_Join: TypeAlias = Callable[[Sequence[ir.Value | None]], list[ir.Node] | None]
_SPARE = 64  # rows of a window's cache beyond the window: it is moved when they are full


def lower(graph: ir.Graph, ctx_len: int, join: _Join | None = None) -> Counter[str]:
    """Replace every attention that the kernel computes, in place.

    Args:
        graph: Without functions of layers, without slots.
        ctx_len: Rows of the cache, and the number of positions tabulated for rotary embeddings.
        join: Function that joins products of one value, see `Products.join`; None to leave query, key and value apart.

    Returns:
        How attentions are computed, by codes of `qeff_zoo.targets.ort.WAYS`, and how many each way.
    """
    lowering = _Lowering(graph, Tables(graph, ctx_len), ctx_len, join)
    attentions = (
        node for node in list(graph) if node.domain == domains.SEMANTIC and node.op_type in _OPS
    )
    ways = Counter(lowering.attention(node) for node in attentions)
    if lowering.slides:
        lowering.trim()
    return ways


def drop_compute_context(graph: ir.Graph) -> None:
    """Take `comp_ctx_lengths` out of a graph of which nothing reads it any more."""
    for value in [value for value in graph.inputs if value.name == "comp_ctx_lengths"]:
        if not value.uses():
            graph.inputs.remove(value)


@dataclass(frozen=True, kw_only=True)
class _Cached:
    """Keys or values of an attention: their state, what writes it, and the new ones (batch, heads, seq, size).

    Args:
        past: The state before the call.
        present: The state after it.
        new: Keys or values that the call adds; None for states of another program, which are read only.
        slides: Whether the state holds a window alone.
        alone: Whether nothing else reads what the call keeps.
    """

    past: ir.Value
    present: ir.Value
    new: ir.Value | None
    slides: bool = False
    alone: bool = True


@dataclass
class _Lowering:
    """State of one lowering: what all attentions share is made once."""

    graph: ir.Graph
    tables: Tables
    ctx_len: int
    join: _Join | None
    slides: bool = False
    _key_lengths: list[ir.Value] = field(default_factory=list)
    _last: dict[ir.Value, list[ir.Value]] = field(default_factory=dict)
    _none: dict[int, ir.Value] = field(default_factory=dict)
    _places: dict[int, ir.Value] = field(default_factory=dict)
    _written: dict[ir.Value, _Cached] = field(default_factory=dict)

    def attention(self, node: ir.Node) -> str:
        """Replace one attention and the writes of its keys and values; return the code of the way."""
        query, key, value, mask, *sinks = node.inputs
        window, keys, values = _window(mask), self._cached(key, node), self._cached(value, node)
        if window is None:
            return self._full(node) if _hides_nothing(mask) else "portable:mask"
        if keys is None or values is None or query is None or keys.slides != values.slides:
            return "portable:cache"
        if _sizes(keys.past) != _sizes(values.past):
            return "portable:sizes"
        groups, width = _sizes(keys.past)
        if width % _UNIT:
            return "portable:head_size"
        new, new_values = keys.new, values.new
        if (
            new is None
            or new_values is None
            or _narrowed(mask)
            or not (keys.alone and values.alone)
        ):
            return self._read_only(node, keys, values, window)
        rotary, other = self.tables.of(query, width), self.tables.of(new, width)
        rotary = rotary if rotary and other and rotary.alike(other) else None
        tables = (rotary.cos, rotary.sin) if rotary else (None, None)
        if rotary and other:
            query, new = rotary.x, other.x
        if keys.slides:
            window = self._slide(keys, values, window)
        tape = Tape()
        flat: list[ir.Value | None] = [heads.flat(tape, one) for one in (query, new, new_values)]
        if self.join and not keys.slides and (products := self.join(flat)):
            self.graph.insert_before(node, products)
            flat = [products[-1].outputs[0], None, None]
        attended, *present = tape.op_multi_out(
            "GroupQueryAttention",
            [*flat, keys.past, values.past, *self._lengths(), *tables]
            + ([None, None, *sinks] if sinks else []),
            {
                **_attributes(node, groups, window),
                "sliding_window_cache": int(keys.slides),
                "do_rotary": int(rotary is not None),
                "rotary_interleaved": int(rotary is not None and rotary.interleaved),
            },
            num_outputs=3,
            domain=_CONTRIB,
        )
        self._answer(node, tape, attended, {keys.present: present[0], values.present: present[1]})
        return "native" if rotary is None else "native:rotary"

    def _full(self, node: ir.Node) -> str:
        """Replace one bidirectional attention; return its code in the lowering report."""
        query, key, value, *_ = node.inputs
        assert query is not None
        assert key is not None
        assert value is not None
        width = heads.width_of(query)
        if node.op_type != "Attention" or width is None or width != heads.width_of(key):
            return "portable:full"
        tape = Tape()
        # The kernel takes keys and values by token, or both by head, as states are.
        by_token = all(heads.undone(projection) is not None for projection in (key, value))
        kept = [
            heads.flat(tape, projection) if by_token else projection for projection in (key, value)
        ]
        attended = tape.op(
            "MultiHeadAttention",
            [heads.flat(tape, query), *kept],
            {name: node.attributes.get(name) for name in ("num_heads", "scale")},
            domain=_CONTRIB,
        )
        self._answer(node, tape, attended)
        return "native:full"

    def _answer(
        self,
        node: ir.Node,
        tape: Tape,
        attended: ir.Value,
        present: Mapping[ir.Value, ir.Value] = _NOTHING,
    ) -> None:
        """Let a kernel's answer take the place of an attention's, and what it writes that of states."""
        replaced, answer = heads.as_heads(node, tape, attended)
        ir.convenience.replace_nodes_and_values(
            self.graph, node, [], tape.nodes, [replaced, *present], [answer, *present.values()]
        )

    def _read_only(self, node: ir.Node, keys: _Cached, values: _Cached, window: int) -> str:
        """Replace one attention, which writes nothing, and the writes of its keys and values."""
        query, _, _, mask, *sinks = node.inputs
        assert query is not None
        assert mask is not None
        groups, width = _sizes(keys.past)
        present = [self._write(cached, groups) for cached in (keys, values)]
        apart = _narrowed(mask) or keys.new is None
        lengths = self._lengths_at(mask) if apart else self._lengths()
        tape, none = Tape(), self._no_keys(groups * width)
        attended, *_ = tape.op_multi_out(
            "GroupQueryAttention",
            [heads.flat(tape, query), none, none, *present, *lengths]
            + ([None, None, None, None, *sinks] if sinks else []),
            _attributes(node, groups, window),
            num_outputs=1,
            domain=_CONTRIB,
        )
        self._answer(node, tape, attended)
        return "native:read"

    def _cached(self, value: ir.Value | None, node: ir.Node) -> _Cached | None:
        """Recognize a plain cache, also one that is written already."""
        read, _ = heads.read(value)
        return (
            _cached(value, node)
            if read is None
            else self._written.get(read) or _cached(value, node)
        )

    def _write(self, cached: _Cached, groups: int) -> ir.Value:
        """Write new keys or values in place, by one node; what padding writes is overwritten before it is read."""
        if cached.new is None or cached.present in self._written:
            return cached.present
        write = cached.present.producer()
        assert write is not None
        tape, rows = Tape(), self._rows(groups)
        present = tape.op("ScatterND", [cached.past, rows, heads.by_token(tape, cached.new)])
        ir.convenience.replace_nodes_and_values(
            self.graph, write, [write], tape.nodes, [cached.present], [present]
        )
        self._written[present] = replace(cached, present=present)
        return present

    def _rows(self, groups: int) -> ir.Value:
        """Return where new keys go, (batch, seq, heads, 3): of each its batch row, head and row of the cache."""
        if groups not in self._places:
            tape, positions = Tape(), self._input("position_ids")
            zero, one = (integer(tape, value) for value in (0, 1))
            batch, columns = (
                tape.op("Squeeze", [tape.op("Shape", [positions], {"start": a, "end": a + 1})])
                for a in (0, 1)
            )
            ends = [integers(tape, value) for value in (0, 1, 1)]
            first = tape.op("Slice", [positions, *ends])  # (batch, 1)
            rows = tape.op("Add", [first, tape.op("Range", [zero, columns, one])])
            numbers = tape.op("Range", [zero, batch, one])
            indices = [
                tape.op("Unsqueeze", [numbers, integers(tape, 1, 2, 3)]),
                tape.op(
                    "Constant", [], {"value": ir.tensor(np.arange(groups).reshape(1, 1, -1, 1))}
                ),
                tape.op("Unsqueeze", [rows, integers(tape, 2, 3)]),
            ]
            every = [tape.op("Shape", [positions]), integers(tape, groups, 1)]
            shape = tape.op("Concat", every, {"axis": 0})
            spread = [tape.op("Expand", [one, shape]) for one in indices]
            self._places[groups] = tape.op("Concat", spread, {"axis": -1})
            self.graph.insert_before(self.graph[0], tape.nodes)
        return self._places[groups]

    def _no_keys(self, width: int) -> ir.Value:
        """Return new keys, or values, of no tokens: (batch, 0, heads * size)."""
        if width not in self._none:
            tape, positions = Tape(), self._input("position_ids")
            batch = tape.op("Shape", [positions], {"start": 0, "end": 1})
            shape = tape.op("Concat", [batch, integers(tape, 0, width)], {"axis": 0})
            self._none[width] = tape.op("ConstantOfShape", [shape])
            self.graph.insert_before(self.graph[0], tape.nodes)
        return self._none[width]

    def _lengths_at(self, mask: ir.Value) -> list[ir.Value]:
        """Return what `_lengths` does where the queries are those of some tokens, whose positions a mask reads."""
        producer = mask.producer()
        positions = producer.inputs[0] if producer is not None else None
        assert producer is not None
        assert positions is not None
        if positions not in self._last:
            tape, one = Tape(), integers
            newest = tape.op("ReduceMax", [positions, one(tape, 1)], {"keepdims": 0})  # (batch,)
            longest = tape.op("ReduceMax", [newest], {"keepdims": 0})
            total = tape.op("Add", [longest, integer(tape, 1)])
            narrow = {"to": ir.DataType.INT32}
            self._last[positions] = [tape.op("Cast", [value], narrow) for value in (newest, total)]
            self.graph.insert_before(producer, tape.nodes)
        return self._last[positions]

    def _slide(self, keys: _Cached, values: _Cached, window: int) -> int:
        """Give the states of a window their rows; return how many tokens it shows."""
        self.slides = True
        shown = min(window, self.ctx_len)
        for cached in (keys, values):
            for state in (cached.past, cached.present):
                sizes = list(state.shape or ())
                sizes[2] = min(shown + _SPARE, self.ctx_len)
                state.shape = ir.Shape(sizes)
        return shown

    def _lengths(self) -> list[ir.Value]:
        """Return the index of each row's last key, (batch,), and the number of keys of the longest row, in 32 bits."""
        if not self._key_lengths:
            tape, positions = Tape(), self._input("position_ids")
            zero, one = integers(tape, 0), integers(tape, 1)
            first = tape.op("Slice", [positions, zero, one, one])  # (batch, 1)
            columns = tape.op("Shape", [positions], {"start": 1})
            total = tape.op("Add", [first, columns])
            last = tape.op("Squeeze", [tape.op("Sub", [total, one]), one])
            longest = tape.op("ReduceMax", [total], {"keepdims": 0})
            narrow = {"to": ir.DataType.INT32}
            self._key_lengths = [tape.op("Cast", [value], narrow) for value in (last, longest)]
            self.graph.insert_before(self.graph[0], tape.nodes)
        return self._key_lengths

    def trim(self) -> None:
        """Cut off the columns of a call that are padding in all rows."""
        tape, positions = Tape(), self._input("position_ids")
        zero, one = integers(tape, 0), integers(tape, 1)
        last = tape.op("ReduceMax", [positions, one], {"keepdims": 1})
        first = tape.op("Slice", [positions, zero, one, one])  # (batch, 1)
        follow = tape.op("ReduceMax", [tape.op("Sub", [last, first]), zero], {"keepdims": 0})
        columns = tape.op("Add", [follow, one])
        for given, axis in _axes_of_columns(self.graph.inputs):
            users = [use for use in given.uses() if use.node not in tape.nodes]
            kept = tape.op("Slice", [given, zero, columns, integers(tape, axis)])
            for use in users:
                use.node.replace_input_with(use.idx, kept)
        for made, axis in _axes_of_columns(self.graph.outputs):
            assert made.shape is not None
            made.shape[axis] = "columns"  # fewer than are given
        self.graph.insert_before(self.graph[0], tape.nodes)

    def _input(self, name: str) -> ir.Value:
        return next(value for value in self.graph.inputs if value.name == name)


def _axes_of_columns(values: Iterable[ir.Value]) -> list[tuple[ir.Value, int]]:
    """Return of inputs or outputs those that have something of each token, and on which axis."""
    named = ((value, [str(size) for size in value.shape or ()]) for value in values)
    return [(value, sizes.index("seq_len")) for value, sizes in named if "seq_len" in sizes]


def _cached(value: ir.Value | None, attention: ir.Node) -> _Cached | None:
    """Recognize a plain cache."""
    sliding = _sliding(value, attention)
    if sliding is not None:
        return sliding
    value, reads = heads.read(value)
    if value is not None and _is_of_another(value):
        return _Cached(past=value, present=value, new=None)
    write = value.producer() if value is not None else None
    if write is None or write.op_type != "CacheWrite":
        return None
    past, positions, new = write.inputs
    state = None if past is None else state_of(past)
    at_positions = positions is not None and positions.is_graph_input()
    users = set(_users(write.outputs[0])) | {
        user for read in reads for user in _users(read.outputs[0])
    }
    if past is None or new is None or not at_positions:
        return None
    if state is None or state.kind != "growing":
        return None
    alone = users == {attention, *reads}
    return _Cached(past=past, present=write.outputs[0], new=new, alone=alone)


def _is_of_another(value: ir.Value) -> bool:
    """Whether another program writes these keys or values."""
    given = value.is_graph_input() and not value.is_initializer()
    return (
        given and state_of(value) is None and "ctx_len" in [str(size) for size in value.shape or ()]
    )


def _sliding(value: ir.Value | None, attention: ir.Node) -> _Cached | None:
    """Recognize the rows of a window's cache, and the new ones after them, that only this attention reads."""
    both = value.producer() if value is not None else None
    if both is None or both.graph is None or both.op_type != "Concat" or len(both.inputs) != 2:
        return None
    past, _ = heads.read(both.inputs[0])
    new = both.inputs[1]
    attended = {user for user in _users(both.outputs[0]) if user.op_type in _OPS}
    state = None if past is None else state_of(past)
    if past is None or new is None or attended != {attention}:
        return None
    if state is None or state.kind != "window":
        return None
    present = next(output for output in both.graph.outputs if output.name == state.output)
    return _Cached(past=past, present=present, new=new, slides=True)


def _users(value: ir.Value) -> Iterator[ir.Node]:
    return (node for node, _ in value.uses())


def _window(mask: ir.Value | None) -> int | None:
    """Return how many keys a causal mask shows, 0 for all, or None for another mask."""
    node = mask.producer() if mask is not None else None
    if node is None or node.domain != domains.SEMANTIC:
        return None
    if node.op_type == "CausalMask":
        return None if _is_of_blocks(node.inputs[0]) else 0
    return node.attributes.get_int("window", 0) if node.op_type in _WINDOWS else None


def _is_of_blocks(positions: ir.Value | None) -> bool:
    """Whether all queries of a call have one position, so that they attend to each other in both directions."""
    producer = positions.producer() if positions is not None else None
    return producer is not None and producer.op_type == "Expand"


def _hides_nothing(mask: ir.Value | None) -> bool:
    """Whether a mask is all zeros, as an attention without a mask has it."""
    producer = mask.producer() if mask is not None else None
    while producer is not None and producer.op_type in _SPREADS:
        mask = producer.inputs[0]
        producer = mask.producer() if mask is not None else None
    if producer is not None and producer.op_type == "ConstantOfShape":
        filled = producer.attributes.get_tensor("value", None)
        return filled is None or not filled.numpy().any()
    known = array_of(mask)
    return known is not None and not known.any()


def _narrowed(mask: ir.Value | None) -> bool:
    """Whether a causal mask covers some of a call's tokens only: its positions are picked."""
    producer = mask.producer() if mask is not None else None
    positions = producer.inputs[0] if producer is not None else None
    while positions is not None and (producer := positions.producer()):
        if producer.op_type == "GatherElements":
            return True
        positions = producer.inputs[0] if producer.op_type == "Clip" else None
    return False


def _attributes(node: ir.Node, groups: int, window: int) -> dict[str, int | float | None]:
    """Return the kernel's attributes for an attention."""
    return {
        "num_heads": node.attributes.get_int("num_heads"),
        "kv_num_heads": groups,
        "scale": node.attributes.get_float("scale"),
        "softcap": node.attributes.get_float("softcap", 0.0),
        "local_window_size": window or -1,
    }


def _sizes(past: ir.Value) -> tuple[int, int]:
    """Return heads and head size of a state (batch, heads, ctx_len, head size)."""
    assert past.shape is not None
    return int(past.shape[1]), int(past.shape[3])  # type: ignore[arg-type]
