# SPDX-License-Identifier: Apache-2.0
"""Operators that HTP's compiler refuses in a static graph, put differently."""

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.tape import Tape


def rewrite(graph: ir.Graph) -> None:
    """Replace operators by others that make the same, in place.

    Args:
        graph: Static: all types and shapes are known.
    """
    for node in list(graph):
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        tape = Tape()
        made = rule(tape, node) if rule else None
        if made is not None:
            made.type, made.shape = node.outputs[0].type, node.outputs[0].shape
            nodes = list(tape.nodes)
            ir.convenience.replace_nodes_and_values(
                graph, node, [node], nodes, [node.outputs[0]], [made]
            )


def _scatter_elements(tape: Tape, node: ir.Node) -> ir.Value | None:
    """Scatter booleans as numbers."""
    if node.outputs[0].dtype != ir.DataType.BOOL:
        return None
    data, indices, updates = node.inputs
    numbers = [tape.op("Cast", [one], {"to": ir.DataType.FLOAT}) for one in (data, updates)]
    attributes = {"axis": node.attributes.get_int("axis", 0)}
    scattered = tape.op("ScatterElements", [numbers[0], indices, numbers[1]], attributes)
    return tape.op("Cast", [scattered], {"to": ir.DataType.BOOL})


_RULES: dict[str, Callable[[Tape, ir.Node], ir.Value | None]] = {
    "ScatterElements": _scatter_elements,
}
