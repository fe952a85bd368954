# SPDX-License-Identifier: Apache-2.0
"""What adapters add becomes operators of ONNX Runtime, which read the matrices of a call's rows alone.

Slots and their numbers leave the graph: the host hands over the matrices that the rows of a call have, of one row where
all have the same, and of rank 0 where a layer is to stay as it is. So nothing is copied or chosen in the graph.

IN   lora_a_<site>.<layer> (rows of the call, or 1; in; rank)
     lora_b_<site>.<layer> (rows of the call, or 1; rank; out)
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.checkpoint.adapters import IDS
from qeff_zoo.graph.semantic.domains import SEMANTIC


def lower(graph: ir.Graph) -> int:
    """Replace the semantic op `Lora`, in place; return how many there were."""
    sites = [node for node in graph if (node.domain, node.op_type) == (SEMANTIC, "Lora")]
    for site in sites:
        nodes = _added(site)
        ir.convenience.replace_nodes_and_values(
            graph, site, [site], nodes, site.outputs, nodes[-1].outputs
        )
    inputs = {value.name: value for value in graph.inputs}
    if ids := inputs.get(IDS):
        for node, position in list(ids.uses()):
            rows = (node.op_type, node.attributes.get_int("start"), node.attributes.get_int("end"))
            assert rows == ("Shape", 0, 1), f"{node.op_type} reads the slots' numbers."
            node.replace_input_with(position, inputs["input_ids"])  # as many rows
        graph.inputs.remove(ids)
    return len(sites)


def _added(site: ir.Node) -> list[ir.Node]:
    """Return what adds the product of a site's matrices."""
    y, x, a, b, _ = site.inputs
    for matrix, rank in ((a, 2), (b, 1)):
        assert matrix is not None
        assert matrix.shape is not None
        matrix.shape = ir.Shape(
            None if axis in (0, rank) else size for axis, size in enumerate(matrix.shape)
        )
    tape = Tape()
    tape.op("Add", [y, tape.op("MatMul", [tape.op("MatMul", [x, a]), b])])
    return [*tape.nodes]
