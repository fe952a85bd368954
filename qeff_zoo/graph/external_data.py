# SPDX-License-Identifier: Apache-2.0
"""Initializers <-> the data file: which slot each one reads, and where its bytes lie once the file is laid out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from qeff_zoo.weights.layout import FileLayout, Slot
from qeff_zoo.weights.types import Expression

#: File name of the weights in every folder we write.
WEIGHTS = "weights.safetensors"
_SLOT = "slot"


def placeholder(name: str, dtype: ir.DataType, shape: Any) -> ir.ExternalTensor:
    """Return a tensor with dtype and shape alone: its data is bound to a checkpoint later."""
    return ir.ExternalTensor(WEIGHTS, 0, 0, dtype, shape=ir.Shape(shape), name=name)


def is_placeholder(value: ir.Value | None) -> bool:
    """Whether a value is an initializer whose data comes from a checkpoint."""
    return value is not None and isinstance(value.const_value, ir.ExternalTensor)


def read_slot(value: ir.Value, entry: str) -> None:
    """Note which tensor of the data file an initializer reads."""
    value.metadata_props[_SLOT] = entry


def slots_read(graph: ir.Graph) -> set[str]:
    """Return the tensors of the data file that a graph's used initializers read."""
    return {
        value.metadata_props.get(_SLOT, "") for value in graph.initializers.values() if value.uses()
    }


def together(every: Iterable[Sequence[Slot]]) -> list[Slot]:
    """Return the slots of several programs, each once: what they read alike they share.

    Args:
        every: Slots of each program.
    """
    slots: dict[str, Slot] = {}
    for slot in (slot for one in every for slot in one):
        assert slots.setdefault(slot.name, slot) == slot, f"{slot.name!r} is two things."
    return list(slots.values())


def as_they_are(model: ir.Model, bindings: Mapping[str, Expression]) -> list[Slot]:
    """Give every placeholder a float32 slot of its own name, one for both where two are tied."""
    slots: dict[str, Slot] = {}
    for name, value in model.graph.initializers.items():
        if is_placeholder(value):
            slot = slots.setdefault(str(bindings[name]), Slot(name, bindings[name]))
            read_slot(value, slot.name)
    return list(slots.values())


def place(model: ir.Model, layout: FileLayout) -> None:
    """Point every placeholder at its bytes in the data file."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            entry = layout.entries[value.metadata_props.pop(_SLOT)]
            value.const_value = ir.ExternalTensor(
                WEIGHTS, entry.offset, entry.nbytes, tensor.dtype, shape=tensor.shape, name=name
            )
