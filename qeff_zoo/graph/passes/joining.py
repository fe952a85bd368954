# SPDX-License-Identifier: Apache-2.0
"""Joins the graphs of a vision encoder and a language model: calls take images, and no features.

In: portable graphs of programs `vision` and `language`. Out: that of one program. A call of one token does not depend
on images, whatever is given, so that a compiler for fixed sizes leaves out their part of it.
"""

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes
from onnx_ir.tape import Tape

from qeff_zoo.graph.constants import integers
from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.graph.states import VISION_SIZE

_FEATURES, _TOKENS, _INDEX = "image_embeds", "input_ids", "image_index"
_PREFIX = "vision_"


def join(reader: ir.Model, model: ir.Model) -> None:
    """Join a vision encoder into a language model, in place; the encoder's graph is consumed.

    Args:
        reader: Returns `image_embeds` (rows, hidden) of one image, and nothing else.
        model: Takes these.
    """
    _rename(reader)
    graph, inputs = model.graph, {value.name: value for value in model.graph.inputs}
    (features,) = reader.graph.outputs
    given = [value for value in reader.graph.inputs if not value.is_initializer()]
    weights = list(reader.graph.initializers.values())
    reader.graph.outputs.clear()
    reader.graph.inputs.clear()
    reader.graph.initializers.clear()
    nodes = list(reader.graph)
    reader.graph.remove(nodes)
    for value in weights:
        known = graph.initializers.get(str(value.name))
        if known is None:
            graph.register_initializer(value)
        else:
            value.replace_all_uses_with(known)
    tape = Tape()
    width = tape.op("Shape", [inputs[_TOKENS]], {"start": 1, "end": 2})
    is_one = tape.op("Equal", [width, integers(tape, 1)])
    nothing = tape.op("Constant", [], {"value_float": 0.0})
    read = tape.op("Where", [is_one, nothing, features])
    read.type = features.type
    graph.insert_before(graph[0], [*nodes, *tape.nodes])
    inputs[_FEATURES].replace_all_uses_with(read)
    graph.inputs.remove(inputs[_FEATURES])
    position = graph.inputs.index(inputs[_INDEX])
    graph.inputs[position:position] = given
    assert features.shape is not None
    graph.metadata_props[VISION_SIZE] = str(features.shape[0])
    model.functions.update(reader.functions)
    model.opset_imports.update(reader.opset_imports)
    onnx_passes.NameFixPass()(model)


def _rename(reader: ir.Model) -> None:
    """Name all that is of a graph alone otherwise than another does: functions, constants, nodes and values."""
    own = [entry for entry in reader.functions.values() if entry.domain != SEMANTIC]
    for function in own:
        del reader.functions[function.identifier()]
        function.name = f"{_PREFIX}{function.name}"
        reader.functions[function.identifier()] = function
    called = {one.domain for one in own}
    for graph in (reader.graph, *(one.graph for one in own)):
        for node in graph.all_nodes():
            if node.domain in called:
                node.op_type = f"{_PREFIX}{node.op_type}"
    for node in reader.graph.all_nodes():
        node.name = f"{_PREFIX}{node.name}"
        for value in node.outputs:
            value.name = f"{_PREFIX}{value.name}"
    for name, value in list(reader.graph.initializers.items()):
        if not is_placeholder(value):
            value.name = f"{_PREFIX}{name}"
