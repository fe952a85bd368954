# SPDX-License-Identifier: Apache-2.0
"""Per-channel int8 matrices (W8A8): products of integers alone, which processors are fastest at.

A product first rounds each row of its left side to int8, with a scale of its own, so that what is computed for one
token is the same whatever stands beside it. Sums are whole numbers, multiplied by both scales at the end. Each product
has initializers of its own, of the same bytes if the matrix is the same: ONNX Runtime rewrites them for processors
without VNNI (see `processor`), and fails at a second reader.

    x (…, K) --round--> uint8 around 128 and scales (…, 1) --QGemm--> (rows of x, N) --reshape, times scales--> (…, N)
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.errors import CompileError
from qeff_zoo.graph.constants import integers
from qeff_zoo.weights.matrices import Matrix
from qeff_zoo.weights.products import CONTRIB, Products

_PRODUCT = "QGemm"
_LARGEST, _MIDDLE = 127, 128
_MADE = _INTEGERS, _SCALES = "integers of rows", "scales of rows"
_LEAST = 1e-30  # of a row's largest magnitude: a row of zeros is divided, too
_MOST_COLUMNS = (2**31 - 1) // (255 * _LARGEST)  # whose sum is within int32


def product(lowering: Products, x: ir.Value, matrix: Matrix) -> list[ir.Node]:
    """Multiply by a matrix, each row of the left side rounded to int8.

    Args:
        lowering: Lowering of the graph.
        x: Left side, (…, columns).
        matrix: Right side.

    Returns:
        Nodes, of which the last makes the product.

    Raises:
        CompileError: Sums would not be within the range of int32.
    """
    if matrix.columns > _MOST_COLUMNS:
        raise CompileError(
            f"Matrix {matrix.name!r} has {matrix.columns:,} columns, and --weights w8a8 sums as many products in 32 "
            f"bits: expected at most {_MOST_COLUMNS:,}. Give --format '{matrix.name}=int8'."
        )
    weight, scales, zeros = _stored(lowering, matrix, multiplied=True)
    if any(node.op_type == _PRODUCT for node, _ in weight.uses()):
        weight, zeros = lowering.another(weight), lowering.another(zeros)
    tape = Tape()
    integers, scale = _rounded(lowering, tape, x)
    one, middle = (
        tape.op("Constant", [], {"value": ir.tensor(number)})
        for number in (np.float32(1), np.uint8(_MIDDLE))
    )
    given = [_flat(lowering, tape, integers, matrix.columns), one, middle, weight, scales, zeros]
    products = tape.op(_PRODUCT, given, {"transB": 1}, domain=CONTRIB)
    tape.op("Mul", [_reshaped(lowering, tape, products, x, matrix.rows), scale])
    return list(tape.nodes)


def rows(lowering: Products, indices: ir.Value, matrix: Matrix) -> list[ir.Node]:
    """Look up rows of a matrix; of the nodes the last makes them."""
    weight, scales, _ = _stored(lowering, matrix, gathered=True)
    tape = Tape()
    looked_up = tape.op("Cast", [tape.op("Gather", [weight, indices])], {"to": ir.DataType.FLOAT})
    last = integers(tape, -1)
    tape.op("Mul", [looked_up, tape.op("Unsqueeze", [tape.op("Gather", [scales, indices]), last])])
    return list(tape.nodes)


def _stored(lowering: Products, matrix: Matrix, **use: bool) -> list[ir.Value]:
    """Return the integers, the scales and the zero points of a matrix."""
    slot = lowering.slot(matrix.name, matrix.expression, matrix.format, kept=matrix.kept)
    lowering.note(slot, matrix.rows, matrix.columns, input_major=matrix.input_major, **use)
    return lowering.quantized(slot, [matrix.rows, matrix.columns], [matrix.rows])


def _rounded(lowering: Products, tape: Tape, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the integers of a left side, (…, columns) around 128, and their scales, (…, 1)."""
    rounded = lowering.made
    if (x, _INTEGERS) not in rounded:  # else another product of the same value had them made
        split = x.producer()
        if (
            split is not None
            and split.op_type == "Split"
            and not split.attributes.get_int("axis", 0)
        ):
            _round_split(lowering, tape, split)
        else:
            _round(lowering, tape, x)
    return rounded[x, _INTEGERS], rounded[x, _SCALES]


def _round(lowering: Products, tape: Tape, x: ir.Value) -> None:
    last = integers(tape, -1)
    numbers = (np.float32(1), np.float32(_LEAST), np.float32(_LARGEST), np.uint8(_MIDDLE))
    one, least, steps, middle = (
        tape.op("Constant", [], {"value": ir.tensor(number)}) for number in numbers
    )
    peak = tape.op("ReduceMax", [tape.op("Abs", [x]), last])
    # Of no rows, as an expert may have, ONNX Runtime reduces to a wrong shape.
    largest = _reshaped(lowering, tape, peak, x, 1)
    scales = tape.op("Div", [tape.op("Max", [largest, least]), steps])
    given = [tape.op("Div", [x, scales]), one, middle]
    lowering.made[x, _INTEGERS] = tape.op("QuantizeLinear", given)
    lowering.made[x, _SCALES] = scales


def _round_split(lowering: Products, tape: Tape, split: ir.Node) -> None:
    """Round the rows of all parts at once: of tokens that go to experts, many of which may have none."""
    whole, *counts = split.inputs
    assert whole is not None
    count, attributes = len(split.outputs), {**split.attributes}
    for name, value in zip(_MADE, _rounded(lowering, tape, whole), strict=True):
        parts = tape.op_multi_out("Split", [value, *counts], attributes, num_outputs=count)
        for part, its in zip(split.outputs, parts, strict=True):
            lowering.made[part, name] = its


def _flat(lowering: Products, tape: Tape, rounded: ir.Value, columns: int) -> ir.Value:
    """Return the rows of all axes but the last, one below the other."""
    if (rounded, "flat") not in lowering.made:
        shape = integers(tape, -1, columns)
        lowering.made[rounded, "flat"] = tape.op("Reshape", [rounded, shape])
    return lowering.made[rounded, "flat"]


def _reshaped(
    lowering: Products, tape: Tape, value: ir.Value, x: ir.Value, columns: int
) -> ir.Value:
    """Give a value the shape of a left side, but for the number of columns."""
    name = f"shape of {columns} columns"
    if (x, name) not in lowering.made:
        width = integers(tape, columns)
        lead = tape.op("Shape", [x], {"end": -1})
        lowering.made[x, name] = tape.op("Concat", [lead, width], {"axis": 0})
    return tape.op("Reshape", [value, lowering.made[x, name]], {"allowzero": 1})
