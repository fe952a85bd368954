# SPDX-License-Identifier: Apache-2.0
"""Constants of graphs: integers that passes add, and the values of existing constants."""

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


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a constant or an initializer; None for other values, and for an absent one.

    Its data may be that of a weight, which is not there yet: see `qeff_zoo.graph.external_data`.
    """
    return None if value is None else ir.convenience.get_const_tensor(value)


def array_of(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Return the data of a constant; None for other values, and for an absent one."""
    tensor = tensor_of(value)
    return None if tensor is None else tensor.numpy()


def number_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant with one element, whatever its shape; None for other values."""
    tensor = tensor_of(value)
    return None if tensor is None or tensor.size != 1 else tensor.numpy().item()
