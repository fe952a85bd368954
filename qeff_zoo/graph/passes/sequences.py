# SPDX-License-Identifier: Apache-2.0
"""Parts that a trace splits off into a sequence become slices: compilers for devices know tensors alone."""

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import array_of, integers


def slice_parts(graph: ir.Graph) -> int:
    """Replace every item that is taken of a sequence of parts, in place; return how many there were.

    Args:
        graph: Graph whose sequences are only split again, at constant indices.
    """
    count = 0
    for node in list(graph):
        maker = (
            node.inputs[0].producer() if node.op_type == "SequenceAt" and node.inputs[0] else None
        )
        if maker is None or maker.op_type != "SplitToSequence":
            continue
        sizes, index = (array_of(value) for value in (maker.inputs[1], node.inputs[1]))
        if sizes is None or index is None:
            continue
        if sizes.ndim:
            ends = np.cumsum(sizes)
            start, stop = int(ends[index] - sizes[index]), int(ends[index])
        else:  # parts of one size
            start, stop = int(index * sizes), int((index + 1) * sizes)
        tape, axis = Tape(), maker.attributes.get_int("axis", 0)
        given = [integers(tape, one) for one in (start, stop, axis)]
        part = tape.op("Slice", [maker.inputs[0], *given])
        for one in tape.nodes:
            one.metadata_props.update(node.metadata_props)
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], tape.nodes, node.outputs, [part]
        )
        count += 1
    return count
