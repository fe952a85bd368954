# SPDX-License-Identifier: Apache-2.0
"""Products of routed tokens: sorted by expert, each expert's tokens are multiplied by its matrix alone.

An unselected expert multiplies no rows, which costs next to nothing. Each has a matrix of its own, which lies in
the file as it is used.
"""

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integer, integers
from qeff_zoo.graph.passes import experts as experts_pass
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.weights import stacks


def lower(graph: ir.Graph, weights: Collection[ir.Value]) -> set[ir.Value]:
    """Replace every product of routed tokens whose matrices are weights, in place.

    Args:
        graph: Without functions of layers.
        weights: Values that are weights.

    Returns:
        The choices of experts by which some product was left as it is.
    """
    left: set[ir.Value] = set()
    routes: dict[tuple[ir.Value, int], _Route] = {}
    for node in [node for node in graph if experts_pass.is_routed_product(node)]:
        x, index, matrices = node.inputs
        assert x is not None
        assert index is not None
        assert matrices is not None
        stack = stacks.stack_of(matrices, weights)
        if stack is None:
            left.add(index)
            continue
        tape = Tape()
        choice = index, stack.count
        if choice not in routes:  # products by the same experts share it
            routes[choice] = _route(tape, index, stack.count)
        product = _product(tape, x, routes[choice], stack)
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], tape.nodes, node.outputs, [product]
        )
    return left


@dataclass(frozen=True, kw_only=True)
class _Route:
    """Which choice goes to which expert. A choice is one of a token's k experts; M choices are of experts there are.

    Args:
        index: (tokens, k).
        choices: (M), their numbers among all, tokens * k, in the order of their experts.
        counts: (experts), how many are of each.
        places: (tokens, k), where a choice stands in that order; M for one of no expert.
    """

    index: ir.Value
    choices: ir.Value
    counts: ir.Value
    places: ir.Value


def _route(tape: Tape, index: ir.Value, count: int) -> _Route:
    """Sort choices by expert."""
    last, second = (integers(tape, axis) for axis in (-1, 1))
    zero, one = (integer(tape, value) for value in (0, 1))
    numbers = integers(tape, *range(count))
    flat = tape.op("Reshape", [index, last])
    chosen = tape.op("Equal", [tape.op("Unsqueeze", [numbers, last]), flat])  # (experts, choices)
    ones = tape.op("Cast", [chosen], {"to": ir.DataType.INT64})
    choices = tape.op("Gather", [tape.op("NonZero", [chosen]), one], {"axis": 0})  # row by row
    shape = tape.op("Shape", [choices])
    order = tape.op("Range", [zero, tape.op("Squeeze", [shape]), one])
    nowhere = tape.op("Expand", [shape, tape.op("Shape", [flat])])
    positions = tape.op("ScatterND", [nowhere, tape.op("Unsqueeze", [choices, last]), order])
    return _Route(
        index=index,
        choices=choices,
        counts=tape.op("ReduceSum", [ones, second], {"keepdims": 0}),
        places=tape.op("Reshape", [positions, tape.op("Shape", [index])]),
    )


def _product(tape: Tape, x: ir.Value, route: _Route, stack: stacks.Stack) -> ir.Value:
    """Multiply x (tokens, k or 1, columns) by the matrices: (tokens, k, rows)."""
    second = {"start": 1, "end": 2}
    own, k = (tape.op("Shape", [value], second) for value in (x, route.index))
    # Of what is given for all of a token's experts, each of its choices reads the same row.
    row = tape.op("Div", [tape.op("Mul", [route.choices, own]), k])
    flat = integers(tape, -1, stack.columns)
    given = tape.op("Gather", [tape.op("Reshape", [x, flat]), row], {"axis": 0})
    parts = tape.op_multi_out("Split", [given, route.counts], {"axis": 0}, num_outputs=stack.count)
    products = [_multiply(tape, part, stack, number) for number, part in enumerate(parts)]
    size = integers(tape, 1, stack.rows)
    products.append(tape.op("ConstantOfShape", [size]))  # for choices of no expert
    return tape.op("Gather", [tape.op("Concat", products, {"axis": 0}), route.places], {"axis": 0})


def _multiply(tape: Tape, x: ir.Value, stack: stacks.Stack, number: int) -> ir.Value:
    matrix = stacks.pick(tape, stack, number)
    if stack.transposed:
        return tape.op("MatMul", [x, matrix])
    return tape.op("Linear", [x, matrix], domain=SEMANTIC)
