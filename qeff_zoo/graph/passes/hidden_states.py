# SPDX-License-Identifier: Apache-2.0
"""States between layers, joined by a matrix of what drafts from them, become an output of the graph.

Only a folded graph lists all layers: each is a call, which takes the hidden states of the previous call.
"""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from qeff_zoo.errors import ExportError
from qeff_zoo.graph.external_data import placeholder
from qeff_zoo.graph.semantic.domains import LAYERS, SEMANTIC

OUTPUT = "hidden_states"


def hand_out(model: ir.Model, layers: Sequence[int], size: Sequence[int], matrix: str) -> int:
    """Let a graph return the inputs of some layers, multiplied with a matrix, in place.

    Args:
        model: A portable graph, folded.
        layers: Their indices.
        size: Size of the matrix: numbers out, numbers in.
        matrix: Name of its initializer.

    Returns:
        How many layers' states are joined.

    Raises:
        ExportError: The layers do not hand one tensor on each.
    """
    graph, calls = model.graph, dict(_calls(model.graph))
    joined = ir.Node(
        "", "Concat", [_into(calls, layer) for layer in layers], [ir.AttrInt64("axis", -1)]
    )
    weight = ir.Value(name=matrix, shape=ir.Shape(size), type=ir.TensorType(ir.DataType.FLOAT))
    weight.const_value = placeholder(matrix, ir.DataType.FLOAT, size)
    graph.initializers[matrix] = weight
    product = ir.Node(SEMANTIC, "Linear", [joined.outputs[0], weight])
    output = product.outputs[0]
    tokens = next(value for value in graph.inputs if value.name == "input_ids")
    assert tokens.shape is not None
    output.name, output.type = OUTPUT, weight.type
    output.shape = ir.Shape([*tokens.shape, size[0]])
    graph.insert_after(calls[max(layers)], [joined, product])
    graph.outputs.insert(1, output)
    return len(layers)


def _calls(graph: ir.Graph) -> Iterator[tuple[int, ir.Node]]:
    """Find the calls of layers, which are named after their path in the model."""
    for node in graph:
        if node.domain == LAYERS:
            yield int((node.name or "").rpartition(".")[2]), node


def _into(calls: dict[int, ir.Node], layer: int) -> ir.Value:
    """Return what a layer takes of the one before."""
    before, node = calls.get(layer - 1), calls.get(layer)
    handed = [value for value in node.inputs if before and value in before.outputs] if node else []
    if len(handed) != 1 or handed[0] is None:
        raise ExportError(
            f"Layer {layer} takes {len(handed)} tensors of the one before, so hidden states cannot be distinguished "
            "from others. Expected layers that follow one another and hand on one. Build without this speculator."
        )
    return handed[0]
