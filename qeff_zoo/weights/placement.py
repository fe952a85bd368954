# SPDX-License-Identifier: Apache-2.0
"""Slots of programs, and their places in the weight file once it is laid out."""

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.graph.external_data import SLOT, WEIGHTS, is_placeholder, read_slot
from qeff_zoo.weights.layout import FileLayout, Slot


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
            entry = layout.entries[value.metadata_props.pop(SLOT)]
            value.const_value = ir.ExternalTensor(
                WEIGHTS, entry.offset, entry.nbytes, tensor.dtype, shape=tensor.shape, name=name
            )
