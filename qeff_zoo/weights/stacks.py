# SPDX-License-Identifier: Apache-2.0
"""Stacks of weight matrices in a graph: recognized values, and a single matrix of a stack."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integer, integers, number_of, tensor_of


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Matrices of one shape.

    Args:
        source: The weight: (matrices, rows, columns), or the matrices one below the other, (matrices * rows, columns).
        first: Number of the first in `source`.
        count: Number of matrices.
        rows: Rows of a multiplied matrix: outputs.
        columns: Likewise, inputs.
        transposed: `source` has the columns of a matrix as its rows.
    """

    source: ir.Value
    first: int
    count: int
    rows: int
    columns: int
    transposed: bool = False


def stack_of(value: ir.Value, weights: Collection[ir.Value]) -> Stack | None:
    """Recognize a stack: a weight, perhaps cut, transposed or reshaped; None for any other value.

    Args:
        value: Value of three dimensions.
        weights: Values that are weights.
    """
    maker: Any = value.producer()
    if maker is None:
        dims = _dims(value) if value in weights else []
        if len(dims) != 3:
            return None
        return Stack(source=value, first=0, count=dims[0], rows=dims[1], columns=dims[2])
    source = maker.inputs[0]
    if maker.op_type == "Reshape":
        shape = tensor_of(maker.inputs[1])
        if source not in weights or shape is None or len(_dims(source)) != 2 or shape.size != 3:
            return None
        (total, columns), (count, *_) = _dims(source), shape.numpy().tolist()
        return Stack(source=source, first=0, count=count, rows=total // count, columns=columns)
    whole = stack_of(source, weights) if maker.op_type in ("Transpose", "Slice") else None
    if whole is None:
        return None
    if maker.op_type == "Slice":
        cut, first, last = cut_rows(value)
        return replace(whole, first=whole.first + first, count=last - first) if cut else None
    if list(maker.attributes.get_ints("perm", [])) != [0, 2, 1]:
        return None
    return replace(whole, rows=whole.columns, columns=whole.rows, transposed=not whole.transposed)


def pick(tape: Tape, stack: Stack, number: int) -> ir.Value:
    """Record the selection of a matrix from a stack, transposed if `source` is.

    Args:
        tape: Tape that records the nodes.
        stack: See `stack_of`.
        number: Number of the matrix, from 0.
    """
    number += stack.first
    if len(_dims(stack.source)) == 3:
        return tape.op("Gather", [stack.source, integer(tape, number)], {"axis": 0})
    rows = stack.columns if stack.transposed else stack.rows
    bounds = [integers(tape, bound) for bound in (number * rows, (number + 1) * rows, 0)]
    return tape.op("Slice", [stack.source, *bounds])


def picked(value: ir.Value) -> tuple[ir.Value | None, int]:
    """Recognize one matrix of a stack of them: the stack and the index, or None."""
    gather: Any = value.producer()
    if gather is None or gather.op_type != "Gather" or gather.attributes.get_int("axis", 0) != 0:
        return None, 0
    index = tensor_of(gather.inputs[1])
    if index is None or index.shape.rank():
        return None, 0
    return gather.inputs[0], int(index.numpy())


def cut_rows(value: ir.Value) -> tuple[ir.Value | None, int, int]:
    """Recognize adjacent rows of a weight: the weight, the first row and the one after the last, or None."""
    part: Any = value.producer()
    if part is None or part.op_type != "Slice":
        return None, 0, 0
    bounds = [number_of(value) for value in part.inputs[1:]]
    known = [int(number) for number in bounds if number is not None]
    if len(known) != len(bounds):
        return None, 0, 0
    first, last, axis, step = [*known, *[0, 1][len(known) - 2 :]]
    if axis != 0 or step != 1 or not 0 <= first < last <= (part.inputs[0].shape or [0])[0]:
        return None, 0, 0
    return part.inputs[0], first, last


def _dims(value: ir.Value) -> list[int]:
    return [int(dim) for dim in value.shape or ()]  # type: ignore[arg-type]
