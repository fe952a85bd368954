# SPDX-License-Identifier: Apache-2.0
"""A graph that returns what it chooses: the experts of a token, the keys that an indexer keeps.

A choice is found by what computes it: `TopK` and `ArgMax` here, `topk` and `max` in transformers' code, in one order.
"""

from collections import Counter
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError

from qeff_zoo.errors import PackageError

#: Operator -> what its choices are called, and which of its outputs has the indices.
_OPERATORS = {"TopK": ("topk", 1), "ArgMax": ("max", 0)}


def returning_choices(path: Path) -> bytes | None:
    """Return a graph, without its weights, that has its choices as outputs; None where it makes none.

    Args:
        path: Of the ONNX file.
    """
    try:
        model = ir.load(path)
    except DecodeError as error:
        raise PackageError(
            f"Cannot read {str(path)!r}: {error}. Expected the graph of a package. Build or pull it again."
        ) from error
    counts: Counter[str] = Counter()
    for node in list(model.graph):
        kind, place = _OPERATORS.get(node.op_type, ("", 0))
        if not kind or not _depends_on_tokens(node.inputs[0]):
            continue  # the newest position is an index too, but nothing chose it
        copy = ir.node("Identity", [node.outputs[place]], num_outputs=1)
        copy.outputs[0].name = f"{kind}.{counts[kind]}"
        copy.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        counts[kind] += 1
        model.graph.append(copy)
        model.graph.outputs.append(copy.outputs[0])
    return ir.to_proto(model).SerializeToString() if counts else None


def _depends_on_tokens(value: ir.Value | None) -> bool:
    """Tell whether a value is computed from what tokens are, not from where they are alone."""
    found, seen = [value], set[ir.Value | None]()
    while found:
        one = found.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        if one.name == "input_ids":
            return True
        node = one.producer()
        if node is not None and node.op_type != "Shape":
            found += node.inputs
    return False
