# SPDX-License-Identifier: Apache-2.0
"""Whole numbers are divided as whole numbers: float16 does not hold them all beyond 2,048, and none beyond 65,504.

transformers counts the frames of a recording by `torch.div(…, rounding_mode="floor")`, of which the exporter makes a
quotient of floats that is rounded down.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import number_of

_WHOLE = (ir.DataType.INT32, ir.DataType.INT64)
#: Added to a quotient and taken off again, since Div rounds towards zero: no quotient is less than minus this.
_OFFSET = 1 << 20


def divide(graph: ir.Graph) -> int:
    """Divide whole numbers by constants without floats, in place; return how many quotients there were.

    Args:
        graph: Graph in which numbers that are divided and rounded down exceed minus 2**20 divisors.
    """
    count = 0
    for node in list(graph):
        quotient = _quotient(node)
        if quotient is None:
            continue
        number, divisor = quotient
        tape = Tape()
        moved = tape.op("Add", [number, _constant(tape, number, divisor * _OFFSET)])
        shares = tape.op("Div", [moved, _constant(tape, number, divisor)])
        whole = tape.op("Sub", [shares, _constant(tape, number, _OFFSET)])
        cast = tape.op("Cast", [whole], {"to": node.attributes.get_int("to")})
        for value in (moved, shares, whole):
            value.type, value.shape = number.type, node.outputs[0].shape
        cast.type, cast.shape = node.outputs[0].type, node.outputs[0].shape
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], tape.nodes, node.outputs, [cast]
        )
        count += 1
    return count


def _quotient(node: ir.Node) -> tuple[ir.Value, int] | None:
    """Return what a cast has of a whole number, divided by a constant and rounded down; None of others."""
    if node.op_type != "Cast" or node.attributes.get_int("to", 0) not in _WHOLE:
        return None
    floor = _made_by(node.inputs[0], "Floor")
    shares = _made_by(floor.inputs[0], "Div") if floor else None
    cast = _made_by(shares.inputs[0], "Cast") if shares else None
    if shares is None or cast is None:
        return None
    number, divisor = cast.inputs[0], number_of(shares.inputs[1])
    if number is None or number.dtype not in _WHOLE or divisor is None:
        return None
    return (number, int(divisor)) if divisor >= 1 and float(divisor).is_integer() else None


def _made_by(value: ir.Value | None, op: str) -> ir.Node | None:
    node = value.producer() if value else None
    return node if node and node.op_type == op else None


def _constant(tape: Tape, like: ir.Value, number: int) -> ir.Value:
    constant = tape.op("Constant", [], {"value": ir.tensor(number, dtype=like.dtype)})
    constant.type, constant.shape = like.type, ir.Shape([])
    return constant
