# SPDX-License-Identifier: Apache-2.0
"""Short causal convolutions become one kernel of ONNX Runtime, CausalConvWithState, that pads nothing.

It requires of a call what `attention` does: a row's tokens come first, padding after them. So the columns from before a
call are next to a row's first token as they are. An activation stays apart: the kernel has one, but a slower one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integers, number_of
from qeff_zoo.graph.semantic import domains

_CONTRIB = "com.microsoft"
_COLUMNS = 2  # the axis of (batch, channels, columns)
_END = (1 << 63) - 1


def lower(graph: ir.Graph) -> None:
    """Replace every window of a convolution, and the convolution where the kernel computes it, in place.

    Args:
        graph: Without functions of layers, without slots.
    """
    lowering = _Lowering(graph)
    for node in list(graph):
        if node.domain == domains.SEMANTIC and node.op_type == "ConvolutionWindow":
            lowering.window(node)


@dataclass
class _Lowering:
    """State of one lowering: what all convolutions share is made once."""

    graph: ir.Graph
    _newest: dict[int, ir.Value] = field(default_factory=dict)

    def window(self, node: ir.Node) -> None:
        """Join the columns before a call and its own, and keep the newest of each row."""
        before, positions, new = node.inputs
        window, newest = node.outputs
        for conv in [use.node for use in window.uses()]:
            read = _read(conv, node)
            if read is not None:
                _convolve(self.graph, conv, read, [before, new])
        tape = Tape()
        both = tape.op("Concat", [before, new], {"axis": _COLUMNS})
        columns = self._columns(positions, node.attributes.get_int("kernel", 0))
        index = tape.op("Expand", [columns, tape.op("Shape", [before])])
        kept = tape.op("GatherElements", [both, index], {"axis": _COLUMNS})
        ir.convenience.replace_nodes_and_values(
            self.graph, node, [node], tape.nodes, [window, newest], [both, kept]
        )

    def _columns(self, positions: ir.Value | None, kernel: int) -> ir.Value:
        """Return the columns (batch, 1, kernel) of each row's newest tokens, after the `kernel` of before."""
        if kernel not in self._newest:
            tape = Tape()
            zero, last = (integers(tape, n) for n in (0, -1))
            valid = tape.op("GreaterOrEqual", [positions, zero])
            valid = tape.op("Cast", [valid], {"to": ir.DataType.INT64})
            tokens = tape.op("ReduceSum", [valid, last], {"keepdims": 1})
            first = integers(tape, *range(kernel))
            columns = tape.op("Add", [tokens, first])
            middle = integers(tape, 1)
            self._newest[kernel] = tape.op("Unsqueeze", [columns, middle])
            self.graph.insert_before(self.graph[0], tape.nodes)
        return self._newest[kernel]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What is read of a convolution: its newest columns alone, or what SiLU makes of them.

    Args:
        computed: All columns without those of padding behind them.
        activated: The same, or what SiLU makes of it.
        newest: The newest columns of that.
    """

    computed: ir.Value
    activated: ir.Value
    newest: ir.Value


def _convolve(
    graph: ir.Graph, conv: ir.Node, read: _Read, given: Sequence[ir.Value | None]
) -> None:
    """Let the kernel compute the newest columns from those before and the new ones."""
    (before, new), (_, weight, bias, *_) = given, [*conv.inputs, None]
    tape = Tape()
    bounds = [integers(tape, n) for n in (1 - _width(conv), _END, _COLUMNS)]
    past = tape.op("Slice", [before, *bounds])
    output, _ = tape.op_multi_out(
        "CausalConvWithState", [new, weight, bias, past], num_outputs=2, domain=_CONTRIB
    )
    graph.insert_after(conv, tape.nodes)
    # In this order: without an activation, the one is cut from the other.
    ir.convenience.replace_all_uses_with(read.newest, read.activated)
    ir.convenience.replace_all_uses_with(read.computed, output)


def _read(conv: ir.Node, window: ir.Node) -> _Read | None:
    """Recognize a causal convolution of each channel for itself, of which the newest columns are read alone."""
    channels, kernel = (window.attributes.get_int(name, 0) for name in ("channels", "kernel"))
    if (
        conv.op_type != "Conv"
        or not _is_plain(conv, channels)
        or not 1 < _width(conv) <= kernel + 1
    ):
        return None
    pads, computed, length = conv.attributes.get_ints("pads", []), conv.outputs[0], None
    if any(pads):
        head = _cut(computed)
        if set(pads) != {_width(conv) - 1} or head is None or number_of(head.inputs[1]) != 0:
            return None
        computed, length = head.outputs[0], head.inputs[2]
    activated = _activated(computed)
    tail = _cut(activated)
    if tail is None or number_of(tail.inputs[2]) != _END:
        return None
    negated, total = _producer(tail.inputs[1]), _producer(length)
    if negated is None or negated.op_type != "Neg":
        return None
    if length is not None and not _is_sum(total, kernel, negated.inputs[0]):
        return None
    return _Read(computed=computed, activated=activated, newest=tail.outputs[0])


def _is_plain(conv: ir.Node, channels: int) -> bool:
    """Return whether a convolution treats each channel by itself, and reads adjacent columns."""
    attributes = conv.attributes
    ones = {*attributes.get_ints("strides", [1]), *attributes.get_ints("dilations", [1])}
    return ones == {1} and attributes.get_int("group", 1) == channels


def _width(conv: ir.Node) -> int:
    (width,) = conv.attributes.get_ints("kernel_shape", [0])
    return int(width)


def _activated(value: ir.Value) -> ir.Value:
    """Return what SiLU makes of a value, if nothing else reads that; else the value itself."""
    users = {use.node.op_type: use.node for use in value.uses()}
    if users.keys() != {"Sigmoid", "Mul"}:
        return value
    product, gate = users["Mul"], users["Sigmoid"].outputs[0]
    return product.outputs[0] if set(product.inputs) == {value, gate} else value


def _cut(value: ir.Value) -> ir.Node | None:
    """Return what takes adjacent columns of a value, if nothing else reads it."""
    users = [use.node for use in value.uses()]
    if len(users) != 1 or users[0].op_type != "Slice":
        return None
    _, _, _, axis, step, *_ = [*users[0].inputs, None]
    neighbours = step is None or number_of(step) == 1
    return users[0] if neighbours and number_of(axis) == _COLUMNS else None


def _is_sum(node: ir.Node | None, number: int, other: ir.Value | None) -> bool:
    """Whether a node adds a number to another value."""
    if node is None or node.op_type != "Add" or other not in node.inputs:
        return False
    return number in [number_of(value) for value in node.inputs]


def _producer(value: ir.Value | None) -> ir.Node | None:
    """Return what computes a number, be it a scalar or reshaped to a list of one."""
    node = value.producer() if value is not None else None
    return _producer(node.inputs[0]) if node is not None and node.op_type == "Reshape" else node
