# SPDX-License-Identifier: Apache-2.0
"""Experts one by one: each as matrix products on all tokens, weighted by its share, zero for tokens routed elsewhere.

For targets without a kernel that computes only the experts a router chose: static shapes, one matrix per expert, and
no copy of expert weights per token.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.export.domains import SEMANTIC
from qeff_zoo.export.semantic_op import UNBOUNDED

_PLAIN, _INTERLEAVED = "Experts", "InterleavedExperts"


def is_experts(node: ir.Node) -> bool:
    """Tell whether a node is a block of experts."""
    return node.domain == SEMANTIC and node.op_type in (_PLAIN, _INTERLEAVED)


def is_interleaved(node: ir.Node) -> bool:
    """Tell whether a block of experts has gates and ups in turns, input-major matrices and biases."""
    return node.op_type == _INTERLEAVED


def unroll(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a block of experts, in place; its matrices must be initializers.

    Args:
        graph: With the node.
        node: See `is_experts`.
    """
    tape = Tape()
    hidden, _, _, *matrices = node.inputs
    _, weights = shares(tape, node)
    total: ir.Value | None = None
    for expert in range(_count(node)):
        number = tape.op("Constant", [], {"value_int": expert})
        picked = [tape.op("Gather", [matrix, number], {"axis": 0}) for matrix in matrices]
        made = _expert(tape, node, hidden, picked)
        column = tape.op("Constant", [], {"value_ints": [expert]})
        share = tape.op("Gather", [weights, column], {"axis": 1})  # (tokens, 1)
        part = tape.op("Mul", [made, tape.op("CastLike", [share, made])])
        total = part if total is None else tape.op("Add", [total, part])
    assert total is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [total])


def shares(tape: Tape, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Compute, of a block's experts by token, which are chosen and what they weigh.

    Args:
        tape: Records what is needed.
        node: A block of experts.

    Returns:
        Two float32 values (tokens, experts): 1 for those chosen, else 0; the weight, 0 for others.
    """
    _, index, weights = node.inputs[:3]
    numbers = tape.op("Constant", [], {"value_ints": list(range(_count(node)))})
    last, second = (tape.op("Constant", [], {"value_ints": [axis]}) for axis in (-1, 1))
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


def _expert(tape: Tape, node: ir.Node, hidden: ir.Value | None, picked: list[ir.Value]) -> ir.Value:
    if not is_interleaved(node):
        gate_up, down = picked
        both = tape.op("Linear", [hidden, gate_up], domain=SEMANTIC)
        gate, up = tape.op_multi_out("Split", [both], {"axis": -1, "num_outputs": 2}, num_outputs=2)
        return tape.op("Linear", [_gated(tape, node, gate, up), down], domain=SEMANTIC)
    gate_up, gate_up_bias, down, down_bias = picked
    both = tape.op("Add", [tape.op("MatMul", [hidden, gate_up]), gate_up_bias])
    pairs = tape.op("Reshape", [both, tape.op("Constant", [], {"value_ints": [0, -1, 2]})])
    gate, up = (
        tape.op("Gather", [pairs, tape.op("Constant", [], {"value_int": place})], {"axis": 2})
        for place in (0, 1)
    )
    return tape.op("Add", [tape.op("MatMul", [_gated(tape, node, gate, up), down]), down_bias])


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
