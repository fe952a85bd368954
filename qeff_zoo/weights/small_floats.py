# SPDX-License-Identifier: Apache-2.0
"""8-bit floats of a checkpoint in a lowered graph: constants behind DequantizeLinear, scales in their own type.

The graph's readers of such a weight read what the node returns, float32 of the weight's shape. Scales that are not
float32 are cast in the graph, which ONNX Runtime requires of bfloat16. A block of several rows repeats its scales for
each row, as the operator requires.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.weights.layout import DTYPES
from qeff_zoo.weights.matrices import Matrices, shape_of
from qeff_zoo.weights.quantization import block_count

#: First opset whose DequantizeLinear has 8-bit floats and blocks.
OPSET = 21


def keep(weights: Matrices) -> int:
    """Replace every weight that its storage keeps in 8-bit floats, in place; return how many there are.

    Args:
        weights: Weights of a lowering.
    """
    count = 0
    for value, name in list(weights.weights.items()):
        format = weights.storage.floats_of(name, weights.bindings[name]) if value.uses() else None
        if format is None:
            continue
        shape = shape_of(value)
        *lead, columns = shape
        slot = weights.slot(name, weights.bindings[name], format, kept=True)
        weights.note(slot, lead[-1], columns, input_major=False, multiplied=True)
        by_row = len(shape) == 2 and not format.block
        groups = block_count(columns, format.block or columns)
        scale_shape = lead if by_row else [*lead, groups]
        elements = weights.tensor(slot, shape, dtype=DTYPES[format.element])
        scales = weights.tensor(slot, scale_shape, f"{slot.name}.scales", DTYPES[format.scale])
        tape = Tape()
        if scales.dtype != ir.DataType.FLOAT:
            scales = tape.op("Cast", [scales], {"to": ir.DataType.FLOAT})
        attributes = {"axis": 0} if by_row else {"axis": -1, "block_size": format.block or columns}
        dequantized = tape.op("DequantizeLinear", [elements, scales], attributes)
        dequantized.dtype, dequantized.shape = ir.DataType.FLOAT, ir.Shape(shape)
        reader = next(use.node for use in value.uses())
        for node in tape.nodes:
            node.metadata_props.update(reader.metadata_props)
        weights.graph.insert_before(weights.graph[0], tape.nodes)
        ir.convenience.replace_all_uses_with(value, dequantized)
        del weights.weights[value]
        count += 1
    return count
