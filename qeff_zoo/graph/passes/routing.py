# SPDX-License-Identifier: Apache-2.0
"""A graph returns what it chooses: the experts of a token, the keys that an indexer keeps.

The op that computes a choice identifies it: `TopK` and `ArgMax` here, `topk` and `max` in transformers' code, in the
same order.
"""

from collections import Counter

import onnx_ir as ir

#: Operator -> what its choices are called, and which of its outputs has the indices.
_OPERATORS = {"TopK": ("topk", 1), "ArgMax": ("max", 0)}


def return_choices(graph: ir.Graph) -> int:
    """Make every choice an output named `topk.0`, `max.0`, …, in place; return how many there are."""
    counts: Counter[str] = Counter()
    for node in list(graph):
        kind, output_index = _OPERATORS.get(node.op_type, ("", 0))
        if not kind or not _depends_on_tokens(node.inputs[0]):
            continue  # the newest position is an index too, but nothing chose it
        chosen = node.outputs[output_index]
        copy = ir.node("Identity", [chosen], num_outputs=1)
        copy.outputs[0].name = f"{kind}.{counts[kind]}"
        copy.outputs[0].type, copy.outputs[0].shape = ir.TensorType(ir.DataType.INT64), chosen.shape
        counts[kind] += 1
        graph.append(copy)
        graph.outputs.append(copy.outputs[0])
    return counts.total()


def _depends_on_tokens(value: ir.Value | None) -> bool:
    """Whether a value depends on the tokens' content, and not on their positions alone."""
    pending, visited = [value], set[ir.Value | None]()
    while pending:
        one = pending.pop()
        if one is None or one in visited:
            continue
        visited.add(one)
        if one.name == "input_ids":
            return True
        node = one.producer()
        if node is not None and node.op_type != "Shape":
            pending += node.inputs
    return False
