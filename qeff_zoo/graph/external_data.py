# SPDX-License-Identifier: Apache-2.0
"""Initializers without data: which tensor of the weight file each one reads."""

from typing import Any

import onnx_ir as ir

#: File name of the weights in every folder we write.
WEIGHTS = "weights.safetensors"
#: Metadata of an initializer: the tensor of the weight file that it reads.
SLOT = "slot"


def placeholder(name: str, dtype: ir.DataType, shape: Any) -> ir.ExternalTensor:
    """Return a tensor with dtype and shape alone: its data is bound to a checkpoint later."""
    return ir.ExternalTensor(WEIGHTS, 0, 0, dtype, shape=ir.Shape(shape), name=name)


def is_placeholder(value: ir.Value | None) -> bool:
    """Whether a value is an initializer whose data comes from a checkpoint."""
    return value is not None and isinstance(value.const_value, ir.ExternalTensor)


def read_slot(value: ir.Value, entry: str) -> None:
    """Note which tensor of the data file an initializer reads."""
    value.metadata_props[SLOT] = entry


def slots_read(graph: ir.Graph) -> set[str]:
    """Return the tensors of the data file that a graph's used initializers read."""
    return {
        value.metadata_props.get(SLOT, "") for value in graph.initializers.values() if value.uses()
    }
