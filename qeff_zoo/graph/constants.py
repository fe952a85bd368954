# SPDX-License-Identifier: Apache-2.0
"""Constants of graphs: whole numbers that passes add, and the values of those that are there."""

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape


def integer(tape: Tape, number: int) -> ir.Value:
    """Add a whole number, without axes, in int64."""
    return tape.op("Constant", [], {"value_int": number})


def integers(tape: Tape, *numbers: int) -> ir.Value:
    """Add a list of whole numbers, in int64."""
    return tape.op("Constant", [], {"value_ints": numbers})


def array_of(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Return the array of a constant; None for any other value, and for none."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def number_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant that has one element, whatever its shape; None for any other value."""
    array = array_of(value)
    return None if array is None or array.size != 1 else array.item()
