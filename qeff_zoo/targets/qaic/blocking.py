# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks: of the cache, of queries, of heads, or of several of them, so that a block fits on chip.

The softmax over blocks of the cache is computed online: the largest score so far, the sum of exponentials and the
weighted values are rescaled for a larger score. The graph has plain operators and no loop.

In comments: B batch, S new tokens, C cache rows, H heads, G KV heads, D head size; small letters are parts of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.errors import CompileError
from qeff_zoo.graph.constants import integers
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.weights.matrices import input_of

from . import ops

#: Semantic ops that are cut.
ATTENTION = frozenset({"Attention", "SoftcapAttention", "SinkAttention"})
_GATHERS = {ops.GATHER.name, ops.GATHER_SLOTS.name}


@dataclass(frozen=True, kw_only=True)
class Blocking:
    """How attention is cut.

    Args:
        kv: Blocks of the cache.
        q: Blocks of the new tokens.
        heads: Heads of a block; None for all.
    """

    kv: int = 1
    q: int = 1
    heads: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Blocking | None":
        """Return the blocking of target options; None without blocks."""
        if "blocking_mode" not in options:
            return None
        return cls(
            kv=int(options.get("num_kv_blocks", 1)),
            q=int(options.get("num_q_blocks", 1)),
            heads=options.get("head_block_size"),
        )


def lower(graph: ir.Graph, blocking: Blocking) -> int:
    """Cut every attention of a graph, in place; return their number.

    Args:
        graph: Graph with lowered states.
        blocking: Blocks of attention.

    Raises:
        CompileError: The graph has no attention, or the heads of a block do not divide those of an attention.
    """
    attentions = [node for node in graph if node.domain == SEMANTIC and node.op_type in ATTENTION]
    if not attentions:
        raise CompileError(
            "--blocking-mode is given, and the model has no attention that can be cut: it is none, or computed by code "
            "of its own (ALiBi), on latents or on chosen keys. Expected attention of queries to keys. Leave it out."
        )
    for node in attentions:
        cut = _Cut(node, blocking)
        y = cut.attention([*_heads(node, blocking.heads)])
        for one in cut.tape.nodes:
            one.metadata_props.update(node.metadata_props)
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], cut.tape.nodes, node.outputs, [y]
        )
    return len(attentions)


def _heads(node: ir.Node, size: int | None) -> Iterator[range]:
    """Yield the heads of each block."""
    count = node.attributes.get_int("num_heads", 0)
    size = count if size is None else min(size, count)
    if count % size:
        raise CompileError(
            f"--head-block-size is {size}, and an attention has {count} heads; expected a number that divides them. "
            "Change it, or leave h out of --blocking-mode."
        )
    for first in range(0, count, size):
        yield range(first, first + size)


def _gather_of(rows: ir.Value) -> ir.Node | None:
    """Return the node that reads rows of a cache, if `states` reads and zeroes them; None for other values."""
    zeroed = rows.producer()
    gather = input_of(zeroed, 2).producer() if zeroed and zeroed.op_type == "Where" else None
    return gather if gather and gather.op_type in _GATHERS else None


def _cache_of(rows: ir.Value) -> ir.Value:
    """Return the cache that rows are read from, with as many KV heads of the same size: its shape needs no reading."""
    gather = _gather_of(rows)
    return rows if gather is None else input_of(gather, 0)


class _Cut:
    """One attention in blocks.

    Args:
        node: The semantic op.
        blocking: Blocks of attention.
    """

    def __init__(self, node: ir.Node, blocking: Blocking) -> None:
        self.tape, self._blocking = Tape(), blocking
        self._query, self._key, self._value, self._mask = (input_of(node, n) for n in range(4))
        self._sinks = input_of(node, 4) if node.op_type == "SinkAttention" else None
        self._cap = node.attributes.get_float("softcap", 0.0)
        self._count = node.attributes.get_int("num_heads", 0)
        scale = self._number(node.attributes.get_float("scale", 1.0))
        self._query = self._op("Mul", self._query, scale)

    def attention(self, parts: list[range]) -> ir.Value:
        """Return the output of the op, (B, S, H, D).

        Args:
            parts: Heads of each block.
        """
        outputs = [self._of_heads(part if len(parts) > 1 else None) for part in parts]
        return self._op("Transpose", self._joined(outputs, 1), perm=(0, 2, 1, 3))

    def _of_heads(self, heads: range | None) -> ir.Value:
        """Return the attention of some heads, (B, h, S, D); None for all heads."""
        query, mask, sinks, groups = self._query, self._mask, self._sinks, None
        if heads is not None:
            bounds = self._ints(heads.start), self._ints(heads.stop)
            query = self._slice(query, 1, *bounds)
            mask = self._slice(mask, 1, *self._of_mask(heads))
            sinks = sinks and self._slice(sinks, 0, *bounds)
            groups = (
                self._share(self._key, heads.start),
                self._share(self._key, heads.stop, up=True),
            )
        outputs = []
        for start, stop in self._bounds(query, 2, self._blocking.q):
            cut = self._blocking.q > 1
            rows, hidden = (
                self._slice(one, 2, start, stop) if cut else one for one in (query, mask)
            )
            outputs.append(self._of_queries(rows, hidden, sinks, groups))
        return self._joined(outputs, 2)

    def _of_queries(
        self,
        query: ir.Value,
        mask: ir.Value,
        sinks: ir.Value | None,
        groups: tuple[ir.Value, ir.Value] | None,
    ) -> ir.Value:
        """Return the attention of some queries, (B, h, s, D), computed block after block of the cache."""
        rows = self._op("Shape", query, start=0, end=3)
        most = total = mixed = None
        for start, stop in self._bounds(mask, 3, self._blocking.kv):
            cut = self._blocking.kv > 1
            key, value = (self._read(one, start, stop, groups) for one in (self._key, self._value))
            hidden = self._slice(mask, 3, start, stop) if cut else mask
            scores = self._scores(query, key, hidden, rows)
            highest = self._op("ReduceMax", scores, self._ints(-1))
            now = highest if most is None else self._op("Max", most, highest)
            shares = self._op("Exp", self._op("Sub", scores, now))
            part = self._mixed(shares, key, value)
            weight = self._op("ReduceSum", shares, self._ints(-1))
            if most is not None:
                assert total is not None
                assert mixed is not None
                fade = self._op("Exp", self._op("Sub", most, now))
                weight = self._op("Add", self._op("Mul", total, fade), weight)
                part = self._op("Add", self._op("Mul", mixed, self._grouped(fade, key)), part)
            most, total, mixed = now, weight, part
        assert most is not None
        assert total is not None
        assert mixed is not None
        if sinks is not None:  # a further score of each head, without a value
            sink = self._op("Reshape", sinks, self._ints(1, -1, 1, 1))
            now = self._op("Max", most, sink)
            fade = self._op("Exp", self._op("Sub", most, now))
            own = self._op("Exp", self._op("Sub", sink, now))
            total = self._op("Add", self._op("Mul", total, fade), own)
            mixed = self._op("Mul", mixed, self._grouped(fade, key))
        output = self._op("Div", mixed, self._grouped(total, key))
        size = self._op("Shape", _cache_of(self._value), start=3, end=4)
        return self._op("Reshape", output, self._op("Concat", rows, size, axis=0))

    def _scores(self, query: ir.Value, key: ir.Value, mask: ir.Value, rows: ir.Value) -> ir.Value:
        """Return scores (B, h, s, c), masked."""
        columns = self._op("Transpose", key, perm=(0, 1, 3, 2))
        scores = self._op("MatMul", self._grouped(query, key), columns)
        size = self._op("Shape", key, start=2, end=3)
        scores = self._op("Reshape", scores, self._op("Concat", rows, size, axis=0))
        if self._cap:
            cap = self._number(self._cap)
            scores = self._op("Mul", self._op("Tanh", self._op("Div", scores, cap)), cap)
        return self._op("Add", scores, mask)

    def _mixed(self, shares: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
        """Return the weighted sum of values, (B, g, h / g * s, D)."""
        return self._op("MatMul", self._grouped(shares, key), value)

    def _grouped(self, x: ir.Value, key: ir.Value) -> ir.Value:
        """Reshape (B, h, s, n) to (B, g, h / g * s, n)."""
        first = self._op("Shape", key, start=0, end=2)
        last = self._op("Shape", x, start=3, end=4)
        return self._op("Reshape", x, self._op("Concat", first, self._ints(-1), last, axis=0))

    def _read(
        self,
        cache: ir.Value,
        start: ir.Value,
        stop: ir.Value,
        groups: tuple[ir.Value, ir.Value] | None,
    ) -> ir.Value:
        """Return some rows of keys or values, of some KV heads; only these rows are gathered from a cache."""
        if self._blocking.kv > 1:
            rows = self._gathered(cache, start, stop)
            cache = self._slice(cache, 2, start, stop) if rows is None else rows
        if groups is None:
            return cache
        return self._slice(cache, 1, *groups)

    def _of_mask(self, heads: range) -> tuple[ir.Value, ir.Value]:
        """Return the bounds of the masks of some heads, (1,) each; a single mask is that of all heads."""
        count = self._op("Shape", self._mask, start=1, end=2)
        more = self._op("Sub", count, self._ints(1))
        rest = self._ints(self._count - 1)
        start, further = (
            self._op("Div", self._op("Mul", more, self._ints(number)), rest)
            for number in (heads.start, len(heads) - 1)
        )
        return start, self._op("Add", self._op("Add", start, further), self._ints(1))

    def _share(self, keys: ir.Value, heads: int, *, up: bool = False) -> ir.Value:
        """Return the number of KV heads of the first heads, (1,), rounded down, or up."""
        count = self._op("Shape", _cache_of(keys), start=1, end=2)
        shared = self._op("Mul", count, self._ints(heads))
        if up:
            shared = self._op("Add", shared, self._ints(self._count - 1))
        return self._op("Div", shared, self._ints(self._count))

    def _gathered(self, cache: ir.Value, start: ir.Value, stop: ir.Value) -> ir.Value | None:
        """Return some rows, read as `states` reads all of them; None for other values than those."""
        gather = _gather_of(cache)
        if gather is None:
            return None
        zeroed = cache.producer()
        assert zeroed is not None
        *given, index, _ = gather.inputs
        hidden, nothing = input_of(zeroed, 0), input_of(zeroed, 1)
        assert index is not None
        count = self._op("Squeeze", self._op("Sub", stop, start), self._ints(0))
        some = [*given, self._slice(index, 2, start, stop), count]
        rows = self.tape.op(gather.op_type, some, domain=gather.domain)
        return self._op("Where", self._slice(hidden, 2, start, stop), nothing, rows)

    def _bounds(self, x: ir.Value, axis: int, blocks: int) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Yield the bounds of each block, (1,) each; blocks are as equal as possible."""
        size = self._op("Shape", x, start=axis, end=axis + 1)
        ends = [self._ints(0)]
        for number in range(1, blocks):
            ends.append(
                self._op("Div", self._op("Mul", size, self._ints(number)), self._ints(blocks))
            )
        ends.append(size)
        yield from pairwise(ends)

    def _slice(self, x: ir.Value, axis: int, start: ir.Value, stop: ir.Value) -> ir.Value:
        return self._op("Slice", x, start, stop, self._ints(axis))

    def _joined(self, values: list[ir.Value], axis: int) -> ir.Value:
        return values[0] if len(values) == 1 else self._op("Concat", *values, axis=axis)

    def _ints(self, *values: int) -> ir.Value:
        return integers(self.tape, *values)

    def _number(self, value: float) -> ir.Value:
        return self.tape.op("Constant", [], {"value_float": value})

    def _op(self, op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.tape.op(op, inputs, attributes or None)
