# SPDX-License-Identifier: Apache-2.0
"""Which weights a package rounds, read from its graph, so that a reference can be rounded alike."""

from dataclasses import dataclass
from pathlib import Path

_GATHER = "GatherBlockQuantized"
#: Op -> which of its inputs are packed matrices, or stacks of them.
_PACKED = {"MatMulNBits": (1,), _GATHER: (0,), "QMoE": (2, 5)}
_INT8_ACTIVATIONS = 4  # accuracy_level of MatMulNBits and QMoE
_BLOCKS = ".blocks"  # what a matrix is called where the lookup of an embedding has its name


@dataclass(frozen=True, kw_only=True)
class RoundedMatrix:
    """A weight matrix, or a stack of them, that a graph reads in blocks of small integers.

    Args:
        name: As in the Hugging Face model; `name.3` is the fourth of a stack, a stack's own name all of it.
        rows: Outputs, or entries of an embedding.
        columns: Inputs.
        bits: 4 or 8.
        block_size: Columns that share a scale.
        multiplied: Whether the graph multiplies by it.
        gathered: Whether the graph looks rows up in it.
    """

    name: str
    rows: int
    columns: int
    bits: int
    block_size: int
    multiplied: bool
    gathered: bool


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """All that a graph rounds.

    Args:
        matrices: Its weights.
        activation_block: Block size in which products also round their left side to int8; None for not at all.
    """

    matrices: tuple[RoundedMatrix, ...] = ()
    activation_block: int | None = None


def read_rounding(graph: Path) -> Rounding:
    """Read a package's graph, without its weights.

    Args:
        graph: The ONNX file.
    """
    import onnx

    model = onnx.load(graph, load_external_data=False)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    found: dict[str, RoundedMatrix] = {}
    activation_block = None
    for node in model.graph.node:
        if node.op_type not in _PACKED:
            continue
        values = {attribute.name: attribute.i for attribute in node.attribute}
        bits = values.get("bits") or values["expert_weight_bits"]
        multiplied = node.op_type != _GATHER
        for packed in (node.input[place] for place in _PACKED[node.op_type]):
            name = packed.removesuffix(_BLOCKS)
            known = found.get(name)
            *_, rows, width = shapes[packed][:2] if "N" in values else shapes[packed]
            found[name] = RoundedMatrix(
                name=name,
                rows=rows,
                columns=values.get("K") or width * 8 // bits,
                bits=bits,
                block_size=values["block_size"],
                multiplied=multiplied or (known is not None and known.multiplied),
                gathered=not multiplied or (known is not None and known.gathered),
            )
        if multiplied and values.get("accuracy_level") == _INT8_ACTIVATIONS:
            activation_block = values["block_size"]
    return Rounding(matrices=tuple(found.values()), activation_block=activation_block)
