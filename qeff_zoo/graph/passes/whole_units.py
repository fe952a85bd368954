# SPDX-License-Identifier: Apache-2.0
"""Sequences of any length for a graph that takes whole units of them: it fills them up with zeros itself."""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integers


def fill_up(graph: ir.Graph, unit: int) -> None:
    """Let a graph fill up its inputs, in place.

    Args:
        graph: Whose inputs are (batch_size, seq_len, …), the second a multiple of the unit.
        unit: Unit of lengths.
    """
    first = graph[0]
    for value in list(graph.inputs):
        assert value.shape is not None
        value.shape = ir.Shape([value.shape[0], "seq_len", *value.shape[2:]])
        uses, tape, rank = list(value.uses()), Tape(), len(value.shape)
        length = tape.op("Shape", [value], {"start": 1, "end": 2})
        size = integers(tape, unit)
        lacking = tape.op("Mod", [tape.op("Neg", [length]), size])
        none = integers(tape, 0)
        pads = [none] * (rank + 1) + [lacking] + [none] * (rank - 2)  # before all axes, then behind
        filled = tape.op("Pad", [value, tape.op("Concat", pads, {"axis": 0})])
        filled.name, filled.type = f"{value.name}.filled", value.type
        graph.insert_before(first, tape.nodes)
        for use in uses:
            use.node.replace_input_with(use.idx, filled)
