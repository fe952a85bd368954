# SPDX-License-Identifier: Apache-2.0
"""States as Cloud AI 100 keeps them: written by one scatter, read by one gather, whatever kind they are.

What a call must not write has the index `SKIP`: padding, and rows that are idle. So has what it must not read: rows
beyond the newest token, and of windows and recurrences what an earlier request left. These values become zero, since
no mask hides a NaN: the device returns anything for it.

What an encoder has read (`cross`) the host writes, all rows at once; calls keep it as it is.

A window is read as it was before the call, and only then written: who runs a graph must not write states over what it
reads, unless it keeps that order.

With slots, an idle row may have -1 for its token and slot as well as for its positions: neither is ever used.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.checkpoint.adapters import sites_of
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.graph.states import State, layer_of, mark, state_of

from . import ops

#: In the names of states that one program hands to another, by which vllm-qaic knows them.
_HANDED_OVER = "_vllmKvCache"
#: QEfficient's names of an encoder-decoder's states.
_CROSSED = {
    "past_key": "past_key_self",
    "past_value": "past_value_self",
    "cross_key": "past_key_cross",
    "cross_value": "past_value_cross",
}
_READS = {"SlotRead", "ContextRead"}
_MOST_AXES = 4  # of what the compiler's ops take
_SAME = {"Cast", "CastLike", "Identity"}


def lower(graph: ir.Graph) -> Counter[str]:
    """Lower every state of a decoder, in place.

    Args:
        graph: Without functions of layers; one of an encoder stays as it is.

    Returns:
        Number of states of each kind.
    """
    states = [(value, state) for value in graph.inputs if (state := state_of(value)) is not None]
    if not states:
        return Counter()
    lowering = _Lowering(graph)
    for past, state in states:
        lowering.lower(past, state)
    lowering.finish()
    return Counter(state.kind for _, state in states)


def retain_adapters(graph: ir.Graph) -> int:
    """Let a program keep the matrices of adapters from call to call, in place.

    Args:
        graph: Lowered.

    Returns:
        Number of matrices.
    """
    inputs = {value.name: value for value in graph.inputs if value.name}
    matrices = [inputs[name] for site in sites_of(inputs) for name in site.inputs]
    for value in matrices:
        layer = layer_of(value)
        assert layer is not None
        mark(value, "adapter", layer)
        retain(graph, value)
    return len(matrices)


def retain(graph: ir.Graph, value: ir.Value) -> None:
    """Let a graph keep what the host writes as it is, in place.

    Args:
        graph: Graph of a decoder.
        value: An input, which is marked as a state.
    """
    state, tape = state_of(value), Tape()
    assert state is not None
    kept = tape.op("Identity", [value])
    kept.name, kept.type, kept.shape = state.output, value.type, value.shape
    graph.extend(tape.nodes)
    graph.outputs.append(kept)


def name_for_handover(graph: ir.Graph) -> None:
    """Name every state as vllm-qaic expects of programs that run prompts or decode alone, in place.

    Args:
        graph: Lowered.
    """
    outputs = {value.name: value for value in graph.outputs}
    for value in graph.inputs:
        if (state := state_of(value)) is not None:
            named = replace(state, name=f"{state.name}{_HANDED_OVER}")
            value.name, outputs[state.output].name = named.name, named.output


def name_crossed(graph: ir.Graph) -> None:
    """Name the states of an encoder-decoder as QEfficient does, and what its encoder returns alike, in place.

    Args:
        graph: Lowered; one of any other model stays as it is.
    """
    values = {value: str(value.name).partition(".") for value in (*graph.inputs, *graph.outputs)}
    if any(kind.startswith("cross_") for kind, _, _ in values.values()):
        for value, (kind, *rest) in values.items():
            value.name = "".join((_CROSSED.get(kind, kind), *rest))


class _Lowering:
    """The states of one graph; what they share depends on inputs alone, and is computed first."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.inputs = {value.name: value for value in graph.inputs}
        self.outputs = {value.name: value for value in graph.outputs}
        self.positions = self.inputs["position_ids"]
        self.slots = [self.inputs["batch_index"]] if "batch_index" in self.inputs else []
        self.shared = Tape()
        self._known: dict[Hashable, ir.Value] = {}

    def lower(self, past: ir.Value, state: State) -> None:
        """Lower one state."""
        rules = {"window": self._window, "recurrent": self._recurrent, "cross": self._cross}
        rules.get(state.kind, self._growing)(past, state)

    def finish(self) -> None:
        """Insert what is shared, and let no token be -1."""
        tokens = self.inputs["input_ids"]
        readers = list(tokens.uses())
        safe = self.shared.op("Max", [tokens, self._constant(0)])
        for node, position in readers:
            node.replace_input_with(position, safe)
        self.graph.insert_before(self.graph[0], self.shared.nodes)

    # --- kinds of states ---------------------------------------------------------------------------
    def _growing(self, past: ir.Value, state: State) -> None:
        """Write, then read all up to the newest token."""
        output = self.outputs[state.output]
        writer = _source(output)
        assert writer.op_type in ("CacheWrite", "SlotWrite"), writer.op_type
        tape, old = Tape(), writer.outputs[0]
        readers = list(_readers(old))
        present = self._write(tape, past, self._rows(writer.inputs[-2]), writer.inputs[-1])
        if readers:
            beyond = self._beyond()
            read = self._read(tape, present, beyond, self._every(), self._length())
            for node, position in readers:
                direct = node.op_type == "Shape" and node.inputs[position] is old
                node.replace_input_with(position, present if direct else read)
        self._insert_after(writer, tape.nodes)
        _replace(output, present)

    def _window(self, past: ir.Value, state: State) -> None:
        """Read the content before the call, then write modulo the window, as the portable graph does."""
        output, size = self.outputs[state.output], int(state.axes[2])
        last = _source(output)
        writer = _source(last.inputs[2]) if last.op_type == "SlotReplace" else last
        assert writer.op_type == "CacheWrite", writer.op_type
        readers = [use for use in _readers(past) if use[0].op_type not in ("Shape", "SlotReplace")]
        tape = Tape()
        numbers = self._numbers(size)
        read = self._read(tape, past, self._unwritten(size), numbers, self._constant(size))
        _like(writer, tape.nodes)
        self.graph.insert_before(self.graph[0], tape.nodes)  # before whatever reads it
        for node, position in readers:
            node.replace_input_with(position, read)
        tape = Tape()
        rows, new = writer.inputs[1], writer.inputs[2]
        skipped = tape.op("Less", [rows, self._constant(0)])
        index = tape.op("Where", [skipped, self._constant(ops.SKIP), rows])
        present = self._write(tape, past, index, new)
        self._insert_after(writer, tape.nodes)
        _replace(output, present)

    def _recurrent(self, past: ir.Value, state: State) -> None:
        """Read and write all or nothing: a row that starts anew finds zeros, an idle one writes none."""
        for node in [node for node, _ in _readers(past) if node.op_type == "StateBefore"]:
            tape = Tape()
            if self.slots:
                read = self._read_whole(tape, past, state)
            else:
                fresh = self._unsqueezed(self._fresh(), *range(2, len(state.axes)))
                read = tape.op("Where", [fresh, self._nothing(), past])
            self._insert_after(node, tape.nodes)
            ir.convenience.replace_all_uses_with(node.outputs[0], read)
        if self.slots:
            output = self.outputs[state.output]
            writer, tape = _source(output), Tape()
            assert writer.op_type == "SlotReplace", writer.op_type
            present = self._write_whole(tape, past, state, writer.inputs[2])
            self._insert_after(writer, tape.nodes)
            _replace(output, present)

    def _cross(self, past: ir.Value, state: State) -> None:
        """Keep what the host wrote; of slots, read those of a call's rows."""
        for node in [node for node, _ in list(past.uses()) if node.op_type == "SlotRead"]:
            tape = Tape()
            length = self._op(
                "Squeeze", self._op("Shape", past, start=2, end=3), self._constant([0])
            )
            rows = self._op("Range", self._constant(0), length, self._constant(1))
            read = self._read(tape, past, self._idle(), rows, length)
            self._insert_after(node, tape.nodes)
            ir.convenience.replace_all_uses_with(node.outputs[0], read)
        retain(self.graph, past)

    def _read_whole(self, tape: Tape, past: ir.Value, state: State) -> ir.Value:
        """Read all rows of a state, zeros where there is none to read."""
        axes, count = _viewed(state), _rows_of(state)
        given = self._shaped(tape, past, state, axes)
        rows, length = self._numbers(count), self._constant(count)
        read = self._read(tape, given, self._no_rows(), rows, length, len(axes))
        return self._shaped(tape, read, state, state.axes)

    def _write_whole(
        self, tape: Tape, past: ir.Value, state: State, new: ir.Value | None
    ) -> ir.Value:
        """Write all rows of a state, none of an idle row."""
        assert new is not None
        axes, index = _viewed(state), self._index(self._idle(), self._numbers(_rows_of(state)))
        given, new = (self._shaped(tape, value, state, axes) for value in (past, new))
        present = self._write(tape, given, index, new, len(axes))
        return self._shaped(tape, present, state, state.axes)

    def _shaped(
        self, tape: Tape, value: ir.Value, state: State, axes: Sequence[int | str]
    ) -> ir.Value:
        """Reshape a state with more axes than the ops take; return it unchanged otherwise."""
        if len(state.axes) <= _MOST_AXES:
            return value
        sizes = [0, *(int(size) for size in axes[1:])]
        return tape.op("Reshape", [value, self._constant(sizes)])

    def _insert_after(self, node: ir.Node, nodes: Sequence[ir.Node]) -> None:
        _like(node, nodes)
        self.graph.insert_after(node, nodes)

    # --- scatter and gather ------------------------------------------------------------------------
    def _write(
        self,
        tape: Tape,
        past: ir.Value,
        index: ir.Value,
        new: ir.Value | None,
        rank: int = 4,
    ) -> ir.Value:
        op = ops.SCATTER if not self.slots else ops.SCATTER_SLOTS
        op = op if rank == 4 else ops.SCATTER_SLOTS_3D
        return tape.op(op.name, [past, *self.slots, index, new], domain=op.domain)

    def _read(
        self,
        tape: Tape,
        cache: ir.Value,
        hidden: ir.Value,
        rows: ir.Value,
        length: ir.Value,
        rank: int = 4,
    ) -> ir.Value:
        """Read the rows (L) of a cache, zeros where `hidden` (B, L or 1)."""
        index = self._index(hidden, rows)
        if rank == 4:
            op = ops.GATHER_SLOTS if self.slots else ops.GATHER
            given = [self._unsqueezed(index, 1), length]
        else:
            op, given = ops.GATHER_SLOTS_3D, [index]
        read = tape.op(op.name, [cache, *self.slots, *given], domain=op.domain)
        columns = self._unsqueezed(hidden, *((1, 3) if rank == 4 else (2,)))
        return tape.op("Where", [columns, self._nothing(), read])

    # --- shared values -----------------------------------------------------------------------------
    def _once(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _op(self, op: str, *inputs: ir.Value | None, **attributes: int) -> ir.Value:
        key = op, inputs, tuple(attributes.items())
        return self._once(key, lambda: self.shared.op(op, inputs, attributes or None))

    def _constant(self, value: int | Sequence[int]) -> ir.Value:
        kind, value = (
            ("value_int", value) if isinstance(value, int) else ("value_ints", tuple(value))
        )
        return self._once((kind, value), lambda: self.shared.op("Constant", [], {kind: value}))

    def _nothing(self) -> ir.Value:
        return self._once("0.0", lambda: self.shared.op("Constant", [], {"value_float": 0.0}))

    def _unsqueezed(self, value: ir.Value, *axes: int) -> ir.Value:
        return self._op("Unsqueeze", value, self._constant(axes))

    def _rows(self, positions: ir.Value | None) -> ir.Value:
        """Return where tokens go (B, S), padding nowhere."""
        assert positions is self.positions
        return self._op(
            "Where",
            self._op("Less", positions, self._constant(0)),
            self._constant(ops.SKIP),
            positions,
        )

    def _index(self, hidden: ir.Value, rows: ir.Value) -> ir.Value:
        """Return rows (B, L), skipping hidden ones."""
        return self._op("Where", hidden, self._constant(ops.SKIP), rows)

    def _first(self) -> ir.Value:
        """Return each row's first position (B, 1), `SKIP` for an idle row."""
        rows = self._rows(self.positions)
        return self._op("ReduceMin", rows, self._constant([1]), keepdims=1)

    def _idle(self) -> ir.Value:
        return self._op("Equal", self._first(), self._constant(ops.SKIP))

    def _fresh(self) -> ir.Value:
        return self._op("Equal", self._first(), self._constant(0))

    def _no_rows(self) -> ir.Value:
        """Return which rows (B, 1) have no state to read: new or idle ones."""
        return self._op("Or", self._fresh(), self._idle())

    def _unwritten(self, size: int) -> ir.Value:
        """Return which rows of a window (B, size) have no token of the text yet."""
        before = self._op("Where", self._idle(), self._constant(0), self._first())
        return self._op("GreaterOrEqual", self._numbers(size), before)

    def _numbers(self, count: int) -> ir.Value:
        return self._constant(range(count))

    def _length(self) -> ir.Value:
        """Return how many rows a call reads of a growing state."""
        lengths = self.inputs.get("comp_ctx_lengths")
        if lengths is not None:
            shape = self._op("Shape", lengths)
        else:
            first = next(v for v in self.graph.inputs if (s := state_of(v)) is not None and s.grows)
            shape = self._op("Shape", first, start=2, end=3)
        return self._op("Squeeze", shape, self._constant([0]))

    def _every(self) -> ir.Value:
        return self._op("Range", self._constant(0), self._length(), self._constant(1))

    def _beyond(self) -> ir.Value:
        """Return which rows (B, L) lie beyond the newest token."""
        newest = self._op("ReduceMax", self.positions, self._constant([1]), keepdims=1)
        return self._op("Greater", self._every(), newest)


def _viewed(state: State) -> list[int | str]:
    """Return the axes of a recurrent state as the ops take it: the batch or slots, heads if any, rows, columns."""
    *first, last = state.axes[:_MOST_AXES]
    return [*first, math.prod(int(size) for size in (last, *state.axes[_MOST_AXES:]))]


def _rows_of(state: State) -> int:
    """Return how many rows a recurrent state has."""
    return int(_viewed(state)[-2])


def _like(node: ir.Node, nodes: Sequence[ir.Node]) -> None:
    """Note that nodes belong to the layer of another."""
    for one in nodes:
        one.metadata_props.update(node.metadata_props)


def _source(value: ir.Value | None) -> ir.Node:
    """Return the node that computes a value, but for casts."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in _SAME:
            return node
        value = node.inputs[0]
    raise AssertionError("A state is not computed.")


def _readers(cache: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield what reads a cache, and where: also through the reads of slots and of a compute context."""
    for node, position in list(cache.uses()):
        if node.domain == SEMANTIC and node.op_type in _READS:
            yield from _readers(node.outputs[0])
        else:
            yield node, position


def _replace(output: ir.Value, value: ir.Value) -> None:
    """Let another value be an output of the graph."""
    name, output.name = output.name, None
    ir.convenience.replace_all_uses_with(output, value, replace_graph_outputs=True)
    value.name, value.type, value.shape = name, output.type, output.shape
