# SPDX-License-Identifier: Apache-2.0
"""The graph of continuous batching becomes the graph of plain batches: row b has the states of row b.

One trace serves both: what addresses slots is a semantic op, and has a plain counterpart.
"""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from qeff_zoo.graph.semantic.domains import LAYERS, SEMANTIC

from . import bodies

_INDEX, _SLOTS, _ROWS = "batch_index", "full_batch_size", "batch_size"


def remove(model: ir.Model) -> bool:
    """Remove the batch slots from a portable graph, in place.

    Args:
        model: Model of the task `text-generation`, with `batch_index`; unchanged without it.

    Returns:
        Whether the graph had slots.
    """
    if all(value.name != _INDEX for value in model.graph.inputs):
        return False
    parts = [model.graph, *(function.graph for function in _layers(model))]
    for part in parts:
        for node in list(part):
            rule = _RULES.get(node.op_type) if node.domain == SEMANTIC else None
            if rule:
                plain = rule(*node.inputs)
                ir.convenience.replace_nodes_and_values(
                    part, node, [node], [plain], node.outputs, plain.outputs
                )
    for function in _layers(model):
        _drop_unused(model.graph, function)
    index, positions = (_input(model, name) for name in (_INDEX, "position_ids"))
    for node, position in list(index.uses()):
        rows = (node.op_type, node.attributes.get_int("start"), node.attributes.get_int("end"))
        assert rows == ("Shape", 0, 1), f"{node.op_type} reads the slots' numbers."
        node.replace_input_with(position, positions)  # both have a row for each of the batch
    model.graph.inputs.remove(index)
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.shape is not None:
            dims = [_ROWS if str(dim) == _SLOTS else dim for dim in value.shape]
            value.shape = ir.Shape(dims)
    bodies.attach(model)
    return True


def _input(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in model.graph.inputs if value.name == name)


def _layers(model: ir.Model) -> Iterator[ir.Function]:
    return (function for function in model.functions.values() if function.domain == LAYERS)


def _drop_unused(graph: ir.Graph, function: ir.Function) -> None:
    """Remove unused parameters from a layer's function and its calls."""
    unused = [place for place, value in enumerate(function.inputs) if not value.uses()]
    calls = [node for node in graph if (node.domain, node.op_type) == (LAYERS, function.name)]
    for unused_index in reversed(unused):
        function.inputs.pop(unused_index)
        for call in calls:
            left = [value for index, value in enumerate(call.inputs) if index != unused_index]
            for index, value in enumerate(left):
                call.replace_input_with(index, value)
            call.resize_inputs(len(left))


def _op(name: str, *inputs: ir.Value | None) -> ir.Node:
    return ir.Node(SEMANTIC, name, inputs)


_RULES: dict[str, Callable[..., ir.Node]] = {
    "SlotRead": lambda cache, index: ir.Node("", "Identity", [cache]),
    "SlotWrite": lambda past, index, position_ids, new: _op("CacheWrite", past, position_ids, new),
    "SlotReplace": lambda past, index, rows: ir.Node("", "CastLike", [rows, past]),
}
