# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of calls, bound to memory that further calls use again: binding costs more than a small copy."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from qeff_zoo.runtime.program import Array

#: Largest input, in bytes, that is copied to the memory of the input of the call before.
_COPIED = 4096


class OutputMemory:
    """Memory of one output. Calls share it, as long as no caller holds the output of an earlier call.

    Args:
        dtype: Data type of the output.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._flat = np.empty(0, dtype)
        #: Views of the memory, by shape, as ONNX Runtime takes them.
        self._values: dict[tuple[int, ...], onnxruntime.OrtValue] = {}
        self._references = sys.getrefcount(self._flat)  # without views

    def output(self, shape: tuple[int, ...]) -> tuple[Array, onnxruntime.OrtValue]:
        """Return an output that no caller holds, and its value: the same value as last time if nothing changed."""
        size = math.prod(shape)
        if size > self._flat.size or self._is_held:
            self._flat, self._values = np.empty(size, self._flat.dtype), {}
        if shape not in self._values:
            self._values[shape] = value_of(self._flat[:size].reshape(shape))
        return self._flat[:size].reshape(shape), self._values[shape]

    @property
    def _is_held(self) -> bool:
        """Whether a caller holds a view of the memory: each view holds a reference, and each value has one view."""
        return sys.getrefcount(self._flat) > self._references + len(self._values)


class Binding:
    """Inputs and outputs of calls with the same batch slots.

    Args:
        raw: Binding of a session, with its states.
    """

    def __init__(self, raw: onnxruntime.IOBinding) -> None:
        self.raw = raw
        self._inputs: dict[str, Array] = {}
        self._copies: dict[str, Array] = {}
        self._outputs: dict[str, onnxruntime.OrtValue] = {}

    def bind_input(self, name: str, array: Array) -> None:
        """Bind an input; nothing happens if the array is bound already."""
        if self._inputs.get(name) is array:
            return
        copy = self._copies.get(name)
        if copy is not None and copy.shape == array.shape and copy.dtype == array.dtype:
            copy[...] = array
            return
        self._copies.pop(name, None)
        if 0 < array.nbytes <= _COPIED:
            array = self._copies[name] = np.array(array, order="C")
        self.raw.bind_cpu_input(name, array)
        self._inputs[name] = array

    def bind_output(self, name: str, shape: Sequence[int], memory: OutputMemory) -> Array:
        """Bind an output to memory, and return its array."""
        array, value = memory.output(tuple(shape))
        if self._outputs.get(name) is not value:
            self.raw.bind_ortvalue_output(name, value)
            self._outputs[name] = value
        return array


def value_of(array: Array) -> onnxruntime.OrtValue:
    """Wrap an array; on the CPU both share the memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
