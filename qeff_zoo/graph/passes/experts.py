# SPDX-License-Identifier: Apache-2.0
"""Blocks of experts taken apart: a product of routed tokens, the gate, another product, and the sum by routing weights.

For targets without a kernel for the whole block, or for this one.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integer, integers
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.graph.semantic.op import UNBOUNDED

_PLAIN, _INTERLEAVED = "Experts", "InterleavedExperts"


def is_experts(node: ir.Node) -> bool:
    """Whether a node is a block of experts."""
    return node.domain == SEMANTIC and node.op_type in (_PLAIN, _INTERLEAVED)


def is_interleaved(node: ir.Node) -> bool:
    """Whether a block of experts has interleaved gates and ups, input-major matrices and biases."""
    return node.op_type == _INTERLEAVED


def is_routed_product(node: ir.Node) -> bool:
    """Whether a node multiplies tokens by the matrices of their own experts."""
    return node.domain == SEMANTIC and node.op_type == "RoutedLinear"


def take_apart(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a block of experts, in place, by routed products and what is between them.

    Args:
        graph: With the node.
        node: See `is_experts`.
    """
    tape = Tape()
    hidden, index, weights, *_ = node.inputs
    second = integers(tape, 1)
    tokens = tape.op("Unsqueeze", [hidden, second])  # (tokens, 1, hidden)
    if is_interleaved(node):
        products, weights = _biased(tape, node, tokens)
    else:
        gate_up, down = node.inputs[3:]
        both = _routed(tape, tokens, index, gate_up)
        gate, up = tape.op_multi_out("Split", [both], {"axis": -1, "num_outputs": 2}, num_outputs=2)
        products = _routed(tape, _gated(tape, node, gate, up), index, down)
    by_token = tape.op("CastLike", [tape.op("Unsqueeze", [weights, second]), products])
    total = tape.op("Squeeze", [tape.op("MatMul", [by_token, products]), second])
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [total])


def routing_weights(tape: Tape, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Compute, of a block's experts by token, which are chosen and what they weigh.

    Args:
        tape: Records what is needed.
        node: A block of experts.

    Returns:
        Two float32 values (tokens, experts): 1 for those chosen, else 0; the weight, 0 for others.
    """
    _, index, weights = node.inputs[:3]
    numbers = integers(tape, *range(_count(node)))
    last, second = (integers(tape, axis) for axis in (-1, 1))
    # (tokens, k, experts)
    chosen = tape.op("Equal", [tape.op("Unsqueeze", [index, last]), numbers])
    zero, one = (tape.op("Constant", [], {"value_float": value}) for value in (0.0, 1.0))
    wide = tape.op("Cast", [tape.op("Unsqueeze", [weights, last])], {"to": ir.DataType.FLOAT})
    return tuple(
        tape.op("ReduceSum", [tape.op("Where", [chosen, value, zero]), second], {"keepdims": 0})
        for value in (one, wide)
    )  # type: ignore[return-value]


def _count(node: ir.Node) -> int:
    """Return the number of experts of a block."""
    stack = node.inputs[3]
    assert stack is not None
    assert stack.shape is not None
    return int(stack.shape[0])  # type: ignore[arg-type]


def _routed(
    tape: Tape,
    x: ir.Value,
    index: ir.Value | None,
    stack: ir.Value | None,
    *,
    transposed: bool = False,
) -> ir.Value:
    matrices = tape.op("Transpose", [stack], {"perm": [0, 2, 1]}) if transposed else stack
    return tape.op("RoutedLinear", [x, index, matrices], domain=SEMANTIC)


def _biased(tape: Tape, node: ir.Node, tokens: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Compute what each expert makes of its tokens, and the routing weights, 0 for experts that there are not."""
    _, index, weights, gate_up, gate_up_bias, down, down_bias = node.inputs
    last = integer(tape, _count(node) - 1)
    known = tape.op("Min", [index, last])  # whose biases there are
    both = _routed(tape, tokens, index, gate_up, transposed=True)
    both = tape.op("Add", [both, tape.op("Gather", [gate_up_bias, known], {"axis": 0})])
    pairs = tape.op("Reshape", [both, integers(tape, 0, 0, -1, 2)])
    gate, up = (tape.op("Gather", [pairs, integer(tape, place)], {"axis": 3}) for place in (0, 1))
    products = _routed(tape, _gated(tape, node, gate, up), index, down, transposed=True)
    products = tape.op("Add", [products, tape.op("Gather", [down_bias, known], {"axis": 0})])
    nothing = tape.op("CastLike", [tape.op("Constant", [], {"value_float": 0.0}), weights])
    return products, tape.op("Where", [tape.op("Equal", [index, known]), weights, nothing])


def _gated(tape: Tape, node: ir.Node, gate: ir.Value, up: ir.Value) -> ir.Value:
    """Compute what `experts_ops.gated` does."""
    alpha, limit, offset = (
        node.attributes.get_float(name, 0.0) for name in ("alpha", "limit", "offset")
    )

    def like(value: float) -> ir.Value:
        return tape.op("CastLike", [tape.op("Constant", [], {"value_float": value}), gate])

    if limit < UNBOUNDED:
        gate = tape.op("Min", [gate, like(limit)])
        up = tape.op("Max", [tape.op("Min", [up, like(limit)]), like(-limit)])
    steep = gate if alpha == 1.0 else tape.op("Mul", [gate, like(alpha)])
    passed = tape.op("Mul", [gate, tape.op("Sigmoid", [steep])])
    return tape.op("Mul", [passed, up if not offset else tape.op("Add", [up, like(offset)])])
