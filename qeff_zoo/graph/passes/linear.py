# SPDX-License-Identifier: Apache-2.0
"""`x @ weight.T` written by hand becomes the semantic op `Linear`, as torch's own `linear` does in the trace."""

import onnx_ir as ir

from qeff_zoo.graph.semantic.domains import SEMANTIC


def recognize(model: ir.Model) -> int:
    """Turn MatMul by a transposed weight matrix into `Linear`; return the number of nodes changed."""
    changed = 0
    for node in list(model.graph):
        transpose = (
            node.inputs[1].producer()
            if node.op_type == "MatMul" and node.inputs[1] is not None
            else None
        )
        if transpose is None or transpose.op_type != "Transpose":
            continue
        if list(transpose.attributes.get_ints("perm", [1, 0])) != [1, 0]:
            continue
        weight = transpose.inputs[0]
        if weight is None or not weight.is_initializer() or len(weight.shape or ()) != 2:
            continue
        linear = ir.Node(
            SEMANTIC, "Linear", [node.inputs[0], weight], metadata_props=node.metadata_props
        )
        ir.convenience.replace_nodes_and_values(
            model.graph, node, [node], [linear], node.outputs, linear.outputs
        )
        changed += 1
    return changed
