# SPDX-License-Identifier: Apache-2.0
"""Operators that HTP's compiler refuses in a static graph, put differently."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import array_of, integers, number_of

_VANISHES = -40.0  # exp of it is nothing beside 1, in float32 as well

_IN_ROWS = 3  # axes of (1, rows, columns)
_TERMS = (13, 11, 9, 7, 5, 3, 1)  # the last that float32 sees, of s below 1/3


def rewrite(graph: ir.Graph) -> None:
    """Replace operators by others that make the same, in place.

    Args:
        graph: Static: all types and shapes are known.
    """
    for node in list(graph):
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        tape = Tape()
        replacement = rule(tape, node) if rule else None
        if replacement is not None:
            replacement.type, replacement.shape = node.outputs[0].type, node.outputs[0].shape
            nodes = list(tape.nodes)
            ir.convenience.replace_nodes_and_values(
                graph, node, [node], nodes, [node.outputs[0]], [replacement]
            )


def _equal(tape: Tape, node: ir.Node) -> ir.Value | None:
    """Compare booleans as numbers."""
    left, right = node.inputs
    if left is None or left.dtype != ir.DataType.BOOL:
        return None
    return tape.op("Equal", [_as_float(tape, one) for one in (left, right)])


def _moved(tape: Tape, node: ir.Node) -> ir.Value | None:
    """Move booleans as numbers."""
    if node.outputs[0].dtype != ir.DataType.BOOL:
        return None
    data, *others = node.inputs
    if node.op_type == "ScatterElements":
        others[1] = _as_float(tape, others[1])
    attributes = dict(node.attributes)
    numbers = tape.op(node.op_type, [_as_float(tape, data), *others], attributes)
    return tape.op("Cast", [numbers], {"to": ir.DataType.BOOL})


def _gather_nd(tape: Tape, node: ir.Node) -> ir.Value | None:
    """Pick by indices along the first axes, taken as one axis, where they are known or one."""
    data, indices = node.inputs
    assert data is not None
    assert indices is not None
    assert data.shape is not None
    if node.attributes.get_int("batch_dims", 0) or indices.shape is None:
        return None
    depth, known = int(indices.shape.numpy()[-1]), array_of(indices)
    if known is None and depth > 1:
        return None
    booleans = node.outputs[0].dtype == ir.DataType.BOOL
    flat = _as_float(tape, data) if booleans else data
    if known is None:
        rows = tape.op("Squeeze", [indices, integers(tape, -1)])
    else:
        sizes = [int(size) for size in data.shape.numpy()]
        positions = np.moveaxis(known, -1, 0)
        every = np.ravel_multi_index(tuple(positions), sizes[:depth], mode="wrap").astype(np.int64)
        rows = tape.op("Constant", [], {"value": ir.tensor(every)})
        shape = integers(tape, -1, *sizes[depth:])
        flat = tape.op("Reshape", [flat, shape])
    picked = tape.op("Gather", [flat, rows], {"axis": 0})
    return tape.op("Cast", [picked], {"to": ir.DataType.BOOL}) if booleans else picked


def _as_float(tape: Tape, value: ir.Value | None) -> ir.Value:
    return tape.op("Cast", [value], {"to": ir.DataType.FLOAT})


def _exp(tape: Tape, node: ir.Node) -> ir.Value:
    """Raise what vanishes in float16 to what still does: of far less, HTP's exponential is its largest number."""
    least = tape.op("Constant", [], {"value_float": _VANISHES})
    return tape.op("Exp", [tape.op("Max", [node.inputs[0], least])])


def _pad(tape: Tape, node: ir.Node) -> ir.Value | None:
    """Lay what is padded with beside what is padded: HTP's Pad takes 0 for any number."""
    x, pads, value, axes = (*node.inputs, None, None)[:4]
    known, number = array_of(pads), number_of(value)
    assert x is not None
    assert x.shape is not None
    if not number or known is None or axes is not None:
        return None
    padded, sizes = x, [int(size) for size in x.shape.numpy()]
    before, after = known.reshape(2, -1).tolist()
    for axis, sides in enumerate(zip(before, after, strict=True)):
        parts = [padded]
        for index, count in zip((0, len(parts) + 1), sides, strict=True):
            if count:
                shape = [*sizes[:axis], count, *sizes[axis + 1 :]]
                content = ir.tensor(np.full(shape, number, np.float32))
                parts.insert(index, tape.op("Constant", [], {"value": content}))
        sizes[axis] += sum(sides)
        if len(parts) > 1:
            padded = tape.op("Concat", parts, {"axis": axis})
    return None if padded is x else padded


def _rms_norm(tape: Tape, node: ir.Node) -> ir.Value | None:
    """Divide by the root of the mean square in one op: HTP's compiler fails on some that are put together."""
    for x, other in permutations(node.inputs, 2):
        inverse = _made_by(other, "Reciprocal")
        root = _made_by(inverse.inputs[0], "Sqrt") if inverse else None
        safe = _made_by(root.inputs[0], "Add") if root else None
        if safe is None or x is None or x.shape is None:
            continue
        for mean_value, eps in permutations(safe.inputs, 2):
            mean, epsilon = _made_by(mean_value, "ReduceMean"), number_of(eps)
            if mean is None or epsilon is None or not _squares(mean.inputs[0], x):
                continue
            axes = array_of(mean.inputs[1])
            if axes is None or axes.tolist() not in ([-1], [len(x.shape) - 1]):
                continue
            ones = np.ones(x.shape.numpy()[-1:], np.float32)
            scale = tape.op("Constant", [], {"value": ir.tensor(ones)})
            return _in_rows(tape, x, scale, epsilon)
    return None


def _norm(tape: Tape, node: ir.Node) -> ir.Value | None:
    x, scale = node.inputs
    assert x is not None
    assert scale is not None
    assert x.shape is not None
    if len(x.shape) == _IN_ROWS and x.shape[0] == 1:
        return None
    return _in_rows(tape, x, scale, node.attributes.get_float("epsilon"))


def _in_rows(tape: Tape, x: ir.Value, scale: ir.Value, epsilon: float) -> ir.Value:
    """Norm (1, rows, columns): of other shapes the simulator of onnxruntime-qnn 2.7 norms some wrongly."""
    assert x.shape is not None
    shape = [int(size) for size in x.shape.numpy()]
    sizes = [1, -1, shape[-1]], shape
    rows, back = (integers(tape, *size) for size in sizes)
    flat = tape.op("Reshape", [x, rows])
    attributes = {"axis": -1, "epsilon": epsilon, "stash_type": 1}
    normed = tape.op("SimplifiedLayerNormalization", [flat, scale], attributes)
    return tape.op("Reshape", [normed, back])


def _softplus(tape: Tape, node: ir.Node) -> ir.Value:
    """Compute log(1 + exp(x)) without adding to 1, where float16 has no digits left for a small exp(x).

    It is max(x, 0) + log(1 + u) with u = exp(-|x|), and log(1 + u) = 2 (s + s^3/3 + s^5/5 + …) with s = u / (2 + u).
    """

    def number(value: float) -> ir.Value:
        return tape.op("Constant", [], {"value_float": value})

    x = node.inputs[0]
    down = tape.op("Neg", [tape.op("Abs", [x])])
    u = tape.op("Exp", [tape.op("Max", [down, number(_VANISHES)])])
    s = tape.op("Div", [u, tape.op("Add", [u, number(2.0)])])
    square = tape.op("Mul", [s, s])
    series = number(1 / _TERMS[0])
    for term in _TERMS[1:]:
        series = tape.op("Add", [tape.op("Mul", [series, square]), number(1 / term)])
    twice = tape.op("Mul", [tape.op("Add", [s, s]), series])
    return tape.op("Add", [tape.op("Relu", [x]), twice])


def _squares(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether a value is the square of another."""
    power, product = _made_by(value, "Pow"), _made_by(value, "Mul")
    if power is not None:
        return power.inputs[0] is x and number_of(power.inputs[1]) == 2
    return product is not None and all(one is x for one in product.inputs)


def _made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


_RULES: dict[str, Callable[[Tape, ir.Node], ir.Value | None]] = {
    "Equal": _equal,
    "Exp": _exp,
    "Expand": _moved,
    "Gather": _moved,
    "GatherND": _gather_nd,
    "Mul": _rms_norm,
    "Pad": _pad,
    "SimplifiedLayerNormalization": _norm,
    "Softplus": _softplus,
    "ScatterElements": _moved,
}
