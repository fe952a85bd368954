# SPDX-License-Identifier: Apache-2.0
"""Short causal convolutions become one kernel of ONNX Runtime, CausalConvWithState, that pads nothing.

It asks of a call what `ort_attention` does: a row's tokens come first, padding stands behind them. So what came before
a call stands next to a row's first token as it is. An activation stays apart: the kernel has one, but slower.
"""

from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.export import domains

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
        seen, newest = node.outputs
        for conv in [use.node for use in seen.uses()]:
            if _is_causal(conv, node.attributes.get_int("channels", 0)):
                _convolve(self.graph, conv, before, new)
        tape = Tape()
        both = tape.op("Concat", [before, new], {"axis": _COLUMNS})
        shape = tape.op("Shape", [before])
        index = self._columns(positions, node.attributes.get_int("kernel", 0))
        index = tape.op("Expand", [index, shape])
        kept = tape.op("GatherElements", [both, index], {"axis": _COLUMNS})
        ir.convenience.replace_nodes_and_values(
            self.graph, node, [node], tape.nodes, [seen, newest], [both, kept]
        )

    def _columns(self, positions: ir.Value | None, kernel: int) -> ir.Value:
        """Return the columns (batch, 1, kernel) of each row's newest tokens, after the `kernel` of before."""
        if kernel not in self._newest:
            tape = Tape()
            zero, last = (tape.op("Constant", [], {"value_ints": [n]}) for n in (0, -1))
            valid = tape.op("GreaterOrEqual", [positions, zero])
            valid = tape.op("Cast", [valid], {"to": ir.DataType.INT64})
            tokens = tape.op("ReduceSum", [valid, last], {"keepdims": 1})
            first = tape.op("Constant", [], {"value_ints": list(range(kernel))})
            columns = tape.op("Add", [tokens, first])
            middle = tape.op("Constant", [], {"value_ints": [1]})
            self._newest[kernel] = tape.op("Unsqueeze", [columns, middle])
            self.graph.insert_before(self.graph[0], tape.nodes)
        return self._newest[kernel]


def _is_causal(node: ir.Node, channels: int) -> bool:
    """Tell whether a node convolves each channel for itself, every column once."""
    found = node.attributes
    ones = [*found.get_ints("strides", [1]), *found.get_ints("dilations", [1])]
    return node.op_type == "Conv" and found.get_int("group", 1) == channels and set(ones) == {1}


def _convolve(
    graph: ir.Graph, conv: ir.Node, before: ir.Value | None, new: ir.Value | None
) -> None:
    """Let the kernel compute the newest columns, if of a convolution no others are read."""
    read = _read(conv)
    if read is None:
        return
    computed, cut = read
    _, weight, *bias = conv.inputs
    (kernel,) = conv.attributes.get_ints("kernel_shape", [])
    tape = Tape()
    first, end, axis = (
        tape.op("Constant", [], {"value_ints": [n]}) for n in (1 - kernel, _END, _COLUMNS)
    )
    past = tape.op("Slice", [before, first, end, axis])
    output, _ = tape.op_multi_out(
        "CausalConvWithState",
        [new, weight, *(bias or [None]), past],
        num_outputs=2,
        domain=_CONTRIB,
    )
    graph.insert_after(conv, tape.nodes)
    newest = [
        cut.outputs[0],
        computed,
    ]  # in this order: without an activation, one is made of the other
    ir.convenience.replace_all_uses_with(newest, [cut.inputs[0], output])


def _read(conv: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Recognize that the newest columns of a convolution are read alone, with an activation or without.

    Returns:
        All columns, without those that padding behind them made, and the node that leaves the newest of them or of
        their activations.
    """
    value = conv.outputs[0]
    if any(conv.attributes.get_ints("pads", [])):
        cut = _slice(value)
        start = ir.convenience.get_const_tensor(cut.inputs[1]) if cut else None
        if cut is None or start is None or start.numpy().item() != 0:
            return None
        value = cut.outputs[0]
    computed = value
    users = {use.node.op_type: use.node for use in value.uses()}
    if users.keys() == {"Sigmoid", "Mul"}:
        value = users["Mul"].outputs[0]
    cut = _slice(value)
    if cut is None or not _is_negated(cut.inputs[1]):
        return None
    return computed, cut


def _slice(value: ir.Value) -> ir.Node | None:
    """Return what takes neighbouring columns of a value, if nothing else reads it."""
    users = [use.node for use in value.uses()]
    if len(users) != 1 or users[0].op_type != "Slice":
        return None
    axis = ir.convenience.get_const_tensor(users[0].inputs[3])
    return users[0] if axis is not None and axis.numpy().tolist() == [_COLUMNS] else None


def _is_negated(value: ir.Value | None) -> bool:
    """Tell whether a number counts from the end: so many columns as there are new ones."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Reshape":
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node is not None and node.op_type == "Neg"
