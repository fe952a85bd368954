# SPDX-License-Identifier: Apache-2.0
"""QMoE as plain operators in float32, on the same packed weights of 8 bits: every expert on all tokens.

    x (tokens, hidden) --gates and ups--> (experts, tokens, 2 * inner) --SwiGLU--> (experts, tokens, inner)
      --downs--> (experts, tokens, hidden) --times routing weights, summed--> (tokens, hidden)

For comparison alone: it reads the weights of all experts.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integers

_MIDDLE = 128  # zero point of 8 bits
_FIRST, _SECOND, _ROUTED = (
    2,
    5,
    14,
)  # inputs: packed matrices, scales and bias of each product; routing weights
_ZERO_POINTS = (11, 12)


def replace(graph: ir.Graph, node: ir.Node) -> None:
    """Put plain operators in the place of a block of experts.

    Args:
        graph: Graph of the node.
        node: QMoE of 8 bits in blocks, gates and ups interleaved.
    """
    tape = Tape()
    op = tape.op
    inputs = [*node.inputs, *[None] * (_ROUTED + 1 - len(node.inputs))]
    x, routed = inputs[0], inputs[_ROUTED]
    hidden = op("Unsqueeze", [x, integers(tape, 0)])  # (1, tokens, hidden)
    both = _product(tape, node, hidden, inputs[_FIRST : _FIRST + 3], inputs[_ZERO_POINTS[0]])
    pairs = op("Reshape", [both, integers(tape, 0, 0, -1, 2)])  # of zeros: as it is
    gate, up = (
        op("Squeeze", [part, integers(tape, -1)])
        for part in tape.op_multi_out(
            "Split", [pairs], {"axis": -1, "num_outputs": 2}, num_outputs=2
        )
    )
    limit = node.attributes.get_float("swiglu_limit", None)
    if limit is not None:
        most, least = (_float(tape, value) for value in (limit, -limit))
        gate, up = op("Min", [gate, most]), op("Clip", [up, least, most])
    scaled = op("Mul", [gate, _float(tape, node.attributes.get_float("activation_alpha", 1.0))])
    offset = _float(tape, node.attributes.get_float("activation_beta", 0.0))
    mixed = op("Mul", [op("Mul", [gate, op("Sigmoid", [scaled])]), op("Add", [up, offset])])
    down = _product(tape, node, mixed, inputs[_SECOND : _SECOND + 3], inputs[_ZERO_POINTS[1]])
    weights = op("Unsqueeze", [op("Transpose", [routed], {"perm": [1, 0]}), integers(tape, -1)])
    total = op("ReduceSum", [op("Mul", [down, weights]), integers(tape, 0)], {"keepdims": 0})
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [total])


def _product(
    tape: Tape,
    node: ir.Node,
    x: ir.Value,
    matrix: list[ir.Value | None],
    zero_points: ir.Value | None,
) -> ir.Value:
    """Return (experts, tokens, rows): the product of each expert's matrix, dequantized, plus its bias."""
    op = tape.op
    packed, scales, bias = matrix
    block = node.attributes.get_int("block_size", 0)
    blocks = op("Reshape", [packed, integers(tape, 0, 0, -1, block)])
    scales, zero_points = (
        one and op("Unsqueeze", [one, integers(tape, -1)]) for one in (scales, zero_points)
    )
    values = dequantized(tape, blocks, scales, zero_points)
    weights = op("Reshape", [values, integers(tape, 0, 0, -1)])  # (experts, rows, columns)
    product = op("MatMul", [x, op("Transpose", [weights], {"perm": [0, 2, 1]})])
    return (
        product
        if bias is None
        else op("Add", [product, op("Unsqueeze", [bias, integers(tape, 1)])])
    )


def dequantized(
    tape: Tape, blocks: ir.Value, scales: ir.Value | None, zero_points: ir.Value | None
) -> ir.Value:
    """Return the floats of blocks of 8 bits.

    Args:
        tape: Writes the operators.
        blocks: Bytes (..., block).
        scales: Scale of each block (..., 1).
        zero_points: Zero point of each block (..., 1); None for the middle.
    """
    op, to_float = tape.op, {"to": ir.DataType.FLOAT}
    middle = op("Cast", [zero_points], to_float) if zero_points else _float(tape, _MIDDLE)
    return op("Mul", [op("Sub", [op("Cast", [blocks], to_float), middle]), scales])


def _float(tape: Tape, value: float) -> ir.Value:
    return tape.op("Constant", [], {"value": ir.tensor(np.float32(value))})
