# SPDX-License-Identifier: Apache-2.0
"""Arithmetic in bfloat16 becomes float32 arithmetic rounded to bfloat16, which is what PyTorch computes.

Some models round a constant part of the computation this way (Falcon's ALiBi), and runtimes rarely have the kernels.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

_ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Pow", "Neg", "Exp", "Sqrt", "Cos", "Sin"}


def widen(model: ir.Model) -> int:
    """Wrap bfloat16 arithmetic of the main graph in casts; return the number of nodes wrapped."""
    wrapped = 0
    for node in list(model.graph):
        output = node.outputs[0]
        if node.op_type not in _ARITHMETIC or output.dtype != ir.DataType.BFLOAT16:
            continue
        for index, value in enumerate(node.inputs):
            if value is not None:
                wide = _cast(node, value, ir.DataType.FLOAT)
                model.graph.insert_before(node, wide)
                node.replace_input_with(index, wide.outputs[0])
        users = list(output.uses())
        output.dtype = ir.DataType.FLOAT
        rounded = _cast(node, output, ir.DataType.BFLOAT16)
        model.graph.insert_after(node, rounded)
        for user, index in users:
            user.replace_input_with(index, rounded.outputs[0])
        wrapped += 1
    return wrapped


def _cast(node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Node:
    cast = ir.Node(
        "",
        "Cast",
        [value],
        attributes=[ir.AttrInt64("to", dtype)],
        metadata_props=node.metadata_props,
    )
    cast.outputs[0].name, cast.outputs[0].dtype = (
        f"{value.name}.{node.name}.{dtype.name.lower()}",
        dtype,
    )
    return cast


def narrow(graph: ir.Graph) -> int:
    """Round to bfloat16 by arithmetic of float32, in place, for who has no bfloat16; return how many casts went.

    A product with 2^16 + 1, less its difference from the number, has the 8 leading bits of the number (Veltkamp). This
    is for constants, which are computed in float32 whatever a device computes in.
    """
    casts = [
        node
        for node in graph
        if node.op_type == "Cast" and node.outputs[0].dtype == ir.DataType.BFLOAT16
    ]
    for node in casts:
        tape = Tape()
        wide = tape.op("Cast", [node.inputs[0]], {"to": ir.DataType.FLOAT})
        factor = tape.op("Constant", [], {"value_float": 65537.0})
        product = tape.op("Mul", [wide, factor])
        rounded = tape.op("Sub", [product, tape.op("Sub", [product, wide])])
        rounded.shape = node.outputs[0].shape
        nodes = list(tape.nodes)
        ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, [rounded])
        rounded.type = ir.TensorType(ir.DataType.FLOAT)
    for value in (value for node in graph for value in node.outputs):
        if value.dtype == ir.DataType.BFLOAT16:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    return len(casts)
