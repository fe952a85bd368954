# SPDX-License-Identifier: Apache-2.0
"""What adapters add becomes operators of ONNX Runtime; calls for the model as it is skip it, decided once for all."""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.semantic.domains import SEMANTIC


def lower(graph: ir.Graph) -> int:
    """Replace the semantic op `Lora`, in place; return how many there were."""
    sites = [node for node in graph if (node.domain, node.op_type) == (SEMANTIC, "Lora")]
    if not sites:
        return 0
    *_, ids = sites[0].inputs
    tape = Tape()
    most = tape.op("ReduceMax", [ids], {"keepdims": 0})
    some = tape.op("Greater", [most, tape.op("Constant", [], {"value_int": 0})])
    slots = tape.op("Squeeze", [ids, tape.op("Constant", [], {"value_ints": [1]})])
    graph.insert_before(graph[0], [*tape.nodes])
    for site in sites:
        node = _adapted(site, some, slots)
        ir.convenience.replace_nodes_and_values(
            graph, site, [site], [node], site.outputs, node.outputs
        )
    return len(sites)


def _adapted(site: ir.Node, some: ir.Value, slots: ir.Value) -> ir.Node:
    """Return what adds the product of a site's matrices where some row has an adapter."""
    y, x, a, b, _ = site.inputs
    adding, same = Tape(), Tape()
    # By the adapters of rows: (rows, in, rank) and (rows, rank, out).
    down, up = (adding.op("Gather", [one, slots], {"axis": 0}) for one in (a, b))
    low = adding.op("MatMul", [x, down])
    adding.op("Add", [y, adding.op("MatMul", [low, up])])
    same.op("Identity", [y])
    branches = {
        f"{name}_branch": _branch(f"{site.outputs[0].name}.{name}", tape)
        for name, tape in (("then", adding), ("else", same))
    }
    return ir.node("If", [some], branches)


def _branch(name: str, tape: Tape) -> ir.Graph:
    nodes = [*tape.nodes]
    for number, node in enumerate(nodes):
        (made,) = node.outputs
        made.name, made.type = f"{name}.{number}", ir.TensorType(ir.DataType.FLOAT)
    return ir.Graph([], [*nodes[-1].outputs], nodes=nodes, name=name)
