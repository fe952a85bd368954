# SPDX-License-Identifier: Apache-2.0
"""A graph to be called once, to show that it can be: its products by weights compute a few rows, and zeros for others.

Whole products would take the longest by far: MatMulNBits first makes floats of a matrix that it did not pack when the
graph was opened, and packs a copy of every matrix otherwise. Of the largest models one matrix of floats has gigabytes.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integers

#: Rows of each matrix that are computed.
_ROWS = 16
#: Products by tables, all inputs from a file but the first, with a row for each output; and the attribute that says so.
_PRODUCTS = {"MatMulNBits": "N", "FusedMatMul": "transB", "QGemm": "transB"}


def shorten(graph: ir.Graph) -> int:
    """Let products compute their first rows alone, in place; return how many do.

    Args:
        graph: Lowered, its weights in a file.
    """
    count = 0
    for node in list(graph):
        tables = {
            place: value.const_value for place, value in enumerate(node.inputs) if place and value
        }
        files = {
            place: table for place, table in tables.items() if isinstance(table, ir.ExternalTensor)
        }
        by_rows = node.attributes.get_int(_PRODUCTS.get(node.op_type, ""), 0)
        rows = next(iter(files.values())).shape.numpy()[0] if by_rows and files else 0
        if rows <= _ROWS:
            continue
        tape = Tape()
        given = list(node.inputs)
        for path, file in files.items():
            given[path] = _first_rows(graph, file)
        for path, one in enumerate(given[1:], 1):
            if one is not None and one.producer() and node.op_type == "MatMulNBits":
                bounds = [integers(tape, number) for number in (0, _ROWS, 0)]
                given[path] = tape.op("Slice", [one, *bounds])  # scales of smaller numbers
        attributes = {**node.attributes, "N": ir.AttrInt64("N", _ROWS)}
        if "N" not in node.attributes:
            del attributes["N"]
        some = tape.op(node.op_type, given, attributes, domain=node.domain)
        rest = integers(tape, 0, rows - _ROWS)
        last = integers(tape, -1)
        whole = tape.op("Pad", [some, rest, None, last])
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], tape.nodes, node.outputs, [whole]
        )
        count += 1
    return count


def _first_rows(graph: ir.Graph, table: ir.ExternalTensor) -> ir.Value:
    """Return an initializer that reads the first rows of another."""
    name = f"{table.name}.first_rows"
    if name not in graph.initializers:
        shape = ir.Shape([_ROWS, *table.shape[1:]])
        nbytes = table.nbytes // table.shape.numpy()[0] * _ROWS
        part = ir.ExternalTensor(
            table.location,
            table.offset,
            nbytes,
            table.dtype,
            shape=shape,
            name=name,
            base_dir=table.base_dir,
        )
        graph.initializers[name] = ir.Value(
            name=name, shape=shape, type=ir.TensorType(table.dtype), const_value=part
        )
    return graph.initializers[name]
