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
    one = tape.op("Constant", [], {"value_ints": [1]})
    slots = tape.op("Squeeze", [ids, one])
    # Rows of one adapter share its matrices, which are then copied once.
    alike = tape.op("Equal", [most, tape.op("ReduceMin", [ids], {"keepdims": 0})])
    count = tape.op("Where", [alike, one, tape.op("Shape", [slots])])
    start = tape.op("Constant", [], {"value_ints": [0]})
    used = tape.op("Slice", [slots, start, count])
    graph.insert_before(graph[0], [*tape.nodes])
    for site in sites:
        nodes = _adapted(site, some, slots, used)
        ir.convenience.replace_nodes_and_values(
            graph, site, [site], nodes, site.outputs, nodes[-1].outputs
        )
    return len(sites)


def _adapted(site: ir.Node, some: ir.Value, slots: ir.Value, used: ir.Value) -> list[ir.Node]:
    """Return what adds the product of a site's matrices where some row has an adapter."""
    y, x, a, b, _ = site.inputs
    before, adding, same = Tape(), Tape(), Tape()
    by_row = x is not None and x.shape is not None and len(x.shape) == 3
    if not by_row:  # tokens of all rows, one after another, or heads of tokens
        all_ = before.op("Constant", [], {"value_ints": [-1]})
        sizes = [before.op("Shape", [slots]), all_, before.op("Shape", [x], {"start": -1})]
        place = before.op("Concat", sizes, {"axis": 0})
        shape = before.op("Shape", [y])
        x = adding.op("Reshape", [x, place])
    # By the adapters of rows: (rows, in, rank) and (rows, rank, out), of one row where all have the same.
    down, up = (adding.op("Gather", [one, used], {"axis": 0}) for one in (a, b))
    product = adding.op("MatMul", [adding.op("MatMul", [x, down]), up])
    adding.op("Add", [y, product if by_row else adding.op("Reshape", [product, shape])])
    same.op("Identity", [y])
    branches = {
        f"{name}_branch": _branch(f"{site.outputs[0].name}.{name}", tape)
        for name, tape in (("then", adding), ("else", same))
    }
    return [*before.nodes, ir.node("If", [some], branches)]


def _branch(name: str, tape: Tape) -> ir.Graph:
    nodes = [*tape.nodes]
    for number, node in enumerate(nodes):
        (made,) = node.outputs
        made.name, made.type = f"{name}.{number}", ir.TensorType(ir.DataType.FLOAT)
    return ir.Graph([], [*nodes[-1].outputs], nodes=nodes, name=name)
