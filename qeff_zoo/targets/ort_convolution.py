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
            if _is_causal(conv, node):
                _convolve(self.graph, conv, before, new)
        tape = Tape()
        both = tape.op("Concat", [before, new], {"axis": _COLUMNS})
        columns = self._columns(positions, node.attributes.get_int("kernel", 0))
        index = tape.op("Expand", [columns, tape.op("Shape", [before])])
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


def _is_causal(node: ir.Node, window: ir.Node) -> bool:
    """Tell whether a node convolves each channel for itself, every column once, over no more than the window has."""
    if node.op_type != "Conv":
        return False
    found = node.attributes
    ones = {*found.get_ints("strides", [1]), *found.get_ints("dilations", [1])}
    channels, kernel = (window.attributes.get_int(name, 0) for name in ("channels", "kernel"))
    group, (width,) = found.get_int("group", 1), found.get_ints("kernel_shape", [0])
    return ones == {1} and group == channels and 1 < width <= kernel + 1


def _convolve(
    graph: ir.Graph, conv: ir.Node, before: ir.Value | None, new: ir.Value | None
) -> None:
    """Let the kernel compute the newest columns, if no others of a convolution are read."""
    computed = _computed(conv)
    if computed is None:
        return
    activated = _activated(computed)
    cut = _cut(activated)
    if cut is None or not _is_negated(cut.inputs[1]):
        return
    _, weight, bias, *_ = [*conv.inputs, None]
    (width,) = conv.attributes.get_ints("kernel_shape", [])
    tape = Tape()
    bounds = [tape.op("Constant", [], {"value_ints": [n]}) for n in (1 - width, _END, _COLUMNS)]
    given = [new, weight, bias, tape.op("Slice", [before, *bounds])]
    output, _ = tape.op_multi_out("CausalConvWithState", given, num_outputs=2, domain=_CONTRIB)
    graph.insert_after(conv, tape.nodes)
    # In this order: without an activation, the one is cut from the other.
    ir.convenience.replace_all_uses_with(cut.outputs[0], activated)
    ir.convenience.replace_all_uses_with(computed, output)


def _computed(conv: ir.Node) -> ir.Value | None:
    """Return all columns of a convolution, without those that padding behind them made."""
    if not any(conv.attributes.get_ints("pads", [])):
        return conv.outputs[0]
    cut = _cut(conv.outputs[0])
    start = ir.convenience.get_const_tensor(cut.inputs[1]) if cut and cut.inputs[1] else None
    return cut.outputs[0] if cut and start is not None and start.numpy().item() == 0 else None


def _activated(value: ir.Value) -> ir.Value:
    """Return what SiLU makes of a value, if nothing else reads that; else the value itself."""
    users = {use.node.op_type: use.node for use in value.uses()}
    if users.keys() != {"Sigmoid", "Mul"}:
        return value
    product, gate = users["Mul"], users["Sigmoid"].outputs[0]
    return product.outputs[0] if set(product.inputs) == {value, gate} else value


def _cut(value: ir.Value) -> ir.Node | None:
    """Return what takes neighbouring columns of a value, if nothing else reads it."""
    users = [use.node for use in value.uses()]
    if len(users) != 1 or users[0].op_type != "Slice" or users[0].inputs[3] is None:
        return None
    axis = ir.convenience.get_const_tensor(users[0].inputs[3])
    return users[0] if axis is not None and axis.numpy().tolist() == [_COLUMNS] else None


def _is_negated(value: ir.Value | None) -> bool:
    """Tell whether a number counts from the end: so many columns as there are new ones."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Reshape":
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node is not None and node.op_type == "Neg"
