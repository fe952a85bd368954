# SPDX-License-Identifier: Apache-2.0
"""Image and audio features in graphs for Cloud AI 100, see `qeff_zoo.targets.qaic.features`.

In: a lowered graph whose tokens get their rows of features, or one that makes those. Out: the same, in place, with
QEfficient's names and shapes: tokens find their rows by counting.
"""

from functools import reduce

import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integer, integers
from qeff_zoo.graph.states import mark, tokens_of
from qeff_zoo.runtime.decoding.call_inputs import PIXELS
from qeff_zoo.targets.qaic.features import BATCH, FIRST, LAYERS, NAMES, OF_LAYER
from qeff_zoo.targets.qaic.states import retain


def place(graph: ir.Graph) -> None:
    """Let a graph return features with an axis for their calls, or keep those and find its tokens' rows.

    Args:
        graph: Lowered.
    """
    index = next((value for value in graph.inputs if tokens_of(value)), None)
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
    every = [value for value in graph.inputs if value.shape and str(value.shape[0]) == rows]
    deep = [value for value in every if str(value.name).startswith(OF_LAYER)]
    kept = [_keep(graph, tape, [value]) for value in every if value not in deep]
    if deep:
        kept.append(_keep(graph, tape, deep))
    for value in graph.inputs:
        if str(value.name).endswith(PIXELS):  # read here, where they become features
            mark(value, "features", 0)
            kept.append(value)
    places, after = _count(tape, inputs["input_ids"], first, tokens_of(index))
    after.name, after.type, after.shape = f"{first.name}_output", first.type, first.shape
    graph.insert_before(graph[0], tape.nodes)
    index.replace_all_uses_with(places)
    graph.outputs.append(after)
    for value in kept:
        retain(graph, value)


def _count(
    tape: Tape, tokens: ir.Value, first: ir.Value, known: list[int]
) -> tuple[ir.Value, ir.Value]:
    """Return each token's row of features, -1 for what stands for itself; and the first that a next call finds."""
    each = [tape.op("Equal", [tokens, integer(tape, token)]) for token in known]
    stands = reduce(lambda one, other: tape.op("Or", [one, other]), each)
    ones = tape.op("Cast", [stands], {"to": ir.DataType.INT64})
    counted = tape.op("Sub", [tape.op("CumSum", [ones, integer(tape, 1)]), integer(tape, 1)])
    rows = tape.op("Add", [counted, first])
    is_feature = tape.op("And", [stands, tape.op("GreaterOrEqual", [rows, integer(tape, 0)])])
    axis = integers(tape, 1)
    after = tape.op("Add", [tape.op("ReduceSum", [ones, axis]), first])
    return tape.op("Where", [is_feature, rows, integer(tape, -1)]), after


def _keep(graph: ir.Graph, tape: Tape, values: list[ir.Value]) -> ir.Value:
    """Let a graph keep features from call to call, under their name and with an axis for it; return what it keeps.

    Several are of layers, and lie one after another.
    """
    first = values[0]
    assert first.name is not None
    assert first.shape is not None
    name = NAMES.get(first.name, LAYERS)
    axes = [1] if name in NAMES.values() else [len(values), 1]
    whole = ir.Value(name=name, type=first.type, shape=ir.Shape([*axes, *first.shape]))
    mark(whole, "features", 0)
    graph.inputs[graph.inputs.index(first)] = whole
    for at, value in enumerate(values):
        part = tape.op("Gather", [whole, integer(tape, at)], {"axis": 0})
        value.replace_all_uses_with(_without_first(tape, part) if len(axes) > 1 else part)
        if value is not first:
            graph.inputs.remove(value)
    return whole


def _without_first(tape: Tape, value: ir.Value) -> ir.Value:
    return tape.op("Squeeze", [value, integers(tape, 0)])


def _return_whole(graph: ir.Graph) -> None:
    """Name returned features and give them an axis; make every input and output declare its size."""
    returned = [value for value in graph.outputs if value.name in NAMES]
    if not returned:
        return
    one: str | int = 1
    for value in graph.inputs:
        if value.shape and value.shape[0] == 1:
            one = BATCH
            value.shape = ir.Shape([BATCH, *value.shape[1:]])
    deep = [value for value in graph.outputs if str(value.name).startswith(OF_LAYER)]
    for values in ([value] for value in returned):
        _return(graph, values, NAMES[str(values[0].name)], [one])
    if deep:
        _return(graph, deep, LAYERS, [len(deep), one])


def _return(graph: ir.Graph, values: list[ir.Value], name: str, axes: list[int | str]) -> None:
    """Put features, or those of layers one after another, in the place of the first that a graph returns."""
    tape = Tape()
    new = integers(tape, *range(len(axes)))
    wide = [tape.op("Unsqueeze", [value, new]) for value in values]
    whole = tape.op("Concat", wide, {"axis": 0}) if len(wide) > 1 else wide[0]
    first = values[0]
    assert first.shape is not None
    for value in values:
        value.name = f"{value.name}_rows"
    whole.name, whole.type, whole.shape = name, first.type, ir.Shape([*axes, *first.shape])
    graph.extend(tape.nodes)
    graph.outputs[graph.outputs.index(first)] = whole
    for value in values[1:]:
        graph.outputs.remove(value)
