# SPDX-License-Identifier: Apache-2.0
"""Features of pictures and sounds in graphs for Cloud AI 100, as `qeff_zoo.targets.qaic.features` has them.

In: a lowered graph whose tokens are told their rows of features, or one that makes those. Out: the same, in place, with
QEfficient's names and shapes: tokens find their rows by counting.
"""

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.states import mark, token_of
from qeff_zoo.targets.qaic.features import BATCH, FIRST, NAMES
from qeff_zoo.targets.qaic.states import retain


def place(graph: ir.Graph) -> None:
    """Let a graph return features with an axis for their calls, or keep those and find its tokens' rows.

    Args:
        graph: Lowered.
    """
    index = next((value for value in graph.inputs if token_of(value) is not None), None)
    if index is None:
        _return_whole(graph)
        return
    assert index.name is not None
    assert index.shape is not None
    tape, inputs = Tape(), {value.name: value for value in graph.inputs}
    first = ir.Value(
        name=FIRST[index.name],
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([index.shape[0], 1]),
    )
    graph.inputs[graph.inputs.index(index)] = first
    rows = f"{index.name.partition('_')[0]}_rows"
    kept = [
        _keep(graph, tape, value)
        for value in list(graph.inputs)
        if value.shape and str(value.shape[0]) == rows
    ]
    places, after = _count(tape, inputs["input_ids"], first, token_of(index) or 0)
    after.name, after.type, after.shape = f"{first.name}_output", first.type, first.shape
    graph.insert_before(graph[0], tape.nodes)
    index.replace_all_uses_with(places)
    graph.outputs.append(after)
    for value in kept:
        retain(graph, value)


def _count(tape: Tape, tokens: ir.Value, first: ir.Value, token: int) -> tuple[ir.Value, ir.Value]:
    """Return each token's row of features, -1 for what stands for itself; and the first that a next call finds."""

    def constant(number: int) -> ir.Value:
        return tape.op("Constant", [], {"value_int": number})

    stands = tape.op("Equal", [tokens, constant(token)])
    ones = tape.op("Cast", [stands], {"to": ir.DataType.INT64})
    counted = tape.op("Sub", [tape.op("CumSum", [ones, constant(1)]), constant(1)])
    rows = tape.op("Add", [counted, first])
    known = tape.op("And", [stands, tape.op("GreaterOrEqual", [rows, constant(0)])])
    axis = tape.op("Constant", [], {"value_ints": [1]})
    after = tape.op("Add", [tape.op("ReduceSum", [ones, axis]), first])
    return tape.op("Where", [known, rows, constant(-1)]), after


def _keep(graph: ir.Graph, tape: Tape, value: ir.Value) -> ir.Value:
    """Let a graph keep features from call to call, under their name and with an axis for it; return what it keeps."""
    assert value.name is not None
    assert value.shape is not None
    whole = ir.Value(name=NAMES[value.name], type=value.type, shape=ir.Shape([1, *value.shape]))
    mark(whole, "features", 0)
    graph.inputs[graph.inputs.index(value)] = whole
    value.replace_all_uses_with(
        tape.op("Squeeze", [whole, tape.op("Constant", [], {"value_ints": [0]})])
    )
    return whole


def _return_whole(graph: ir.Graph) -> None:
    """Give features that a graph returns their name, and an axis; let all that it takes and returns say how many."""
    if not any(value.name in NAMES for value in graph.outputs):
        return
    for value in graph.inputs:
        if value.shape and value.shape[0] == 1:
            value.shape = ir.Shape([BATCH, *value.shape[1:]])
    for at, value in enumerate(graph.outputs):
        name = value.name
        if name not in NAMES:
            continue
        assert name is not None
        assert value.shape is not None
        tape = Tape()
        axis = tape.op("Constant", [], {"value_ints": [0]})
        whole = tape.op("Unsqueeze", [value, axis])
        value.name = f"{name}_rows"
        whole.name, whole.type = NAMES[name], value.type
        whole.shape = ir.Shape([BATCH, *value.shape])
        graph.extend(tape.nodes)
        graph.outputs[at] = whole
