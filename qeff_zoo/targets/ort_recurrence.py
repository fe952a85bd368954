# SPDX-License-Identifier: Apache-2.0
"""Recurrences over tokens become one kernel of ONNX Runtime, LinearAttention, in place of a Scan.

The kernel takes heads side by side in the last axis, and shares keys and queries among the heads of a group as the
semantic ops do, so there is none that it cannot compute.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.export import domains

_CONTRIB = "com.microsoft"
_RULES = {"LinearRecurrence": "gated", "DeltaRecurrence": "gated_delta"}


def lower(graph: ir.Graph) -> None:
    """Replace every recurrence, in place.

    Args:
        graph: Without functions of layers.
    """
    for node in list(graph):
        if node.domain == domains.SEMANTIC and node.op_type in _RULES:
            _fuse(graph, node)


def _fuse(graph: ir.Graph, node: ir.Node) -> None:
    state, log_decay, key, value, query, *beta = node.inputs
    heads, tape = node.attributes.get_int("heads", 0), Tape()
    flat = tape.op("Constant", [], {"value_ints": [0, 0, -1]})
    by_head = tape.op("Constant", [], {"value_ints": [0, 0, heads, -1]})
    queries, keys, values, decays = (
        tape.op("Reshape", [one, flat]) for one in (query, key, value, log_decay)
    )
    read, last = tape.op_multi_out(
        "LinearAttention",
        [queries, keys, values, state, decays, *beta],
        {
            "q_num_heads": node.attributes.get_int("groups", 0),
            "kv_num_heads": heads,
            "scale": 1.0,
            "update_rule": _RULES[node.op_type],
        },
        num_outputs=2,
        domain=_CONTRIB,
    )
    output = tape.op("Reshape", [read, by_head])
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], tape.nodes, node.outputs, [output, last]
    )
