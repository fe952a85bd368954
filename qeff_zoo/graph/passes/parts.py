# SPDX-License-Identifier: Apache-2.0
"""A part of a graph as a model of its own, which is run while the graph is changed, to find a few values."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.semantic.domains import OPSET, SEMANTIC

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: What ONNX Runtime raises for a part that cannot run, or not on these arrays.
FAILURES = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.NotImplemented,
    errors.RuntimeException,
)
_IR_VERSION = 10


def cut(
    inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], sizes: Mapping[str, int]
) -> onnxruntime.InferenceSession | None:
    """Cut out what computes values from others.

    Args:
        inputs: Given when it runs, named `input0`, `input1`, ….
        outputs: Computed values, in this order.
        sizes: Sizes of symbols, which determine the shape of a value, however the value itself is computed.

    Returns:
        None if the outputs depend on weights, on semantic ops or on other inputs of the graph, or cannot run.
    """
    copies = {value: _input(value, number) for number, value in enumerate(inputs)}
    given = list(copies.values())
    nodes: list[ir.Node] = []
    todo = list(reversed(outputs))
    while todo:  # a graph is too deep for recursion
        value = todo[-1]
        if value in copies:
            todo.pop()
            continue
        node = _source(value, sizes)
        if node is None:
            return None
        missing = [one for one in node.inputs if one is not None and one not in copies]
        if missing:
            todo += missing
            continue
        read = [None if one is None else copies[one] for one in node.inputs]
        attributes = list(node.attributes.values())
        copy = ir.Node(
            node.domain, node.op_type, read, attributes=attributes, num_outputs=len(node.outputs)
        )
        nodes.append(copy)
        computed = node.outputs if node is value.producer() else [value]
        copies.update(zip(computed, copy.outputs, strict=True))
    results = [copies[value] for value in outputs]
    for number, value in enumerate(value for node in nodes for value in node.outputs):
        value.name = f"value{number}"
    for value, result in zip(outputs, results, strict=True):
        result.type, result.shape = value.type or ir.TensorType(ir.DataType.FLOAT), None
    graph = ir.Graph(given, results, nodes=nodes, opset_imports={"": OPSET}, name="part")
    with suppress(*FAILURES):  # no kernel, as for bfloat16
        return _open(graph)
    return None


def run(session: onnxruntime.InferenceSession, *arrays: Array) -> list[Array]:
    """Run a part on arrays for its inputs."""
    names = [value.name for value in session.get_inputs()]
    results: list[Array] = session.run(None, dict(zip(names, arrays, strict=True)))
    return results


def evaluate(node: ir.Node, values: Sequence[Array | None]) -> list[Array]:
    """Run a node of ONNX on arrays, one for each of its inputs that is there."""
    given = [None if array is None else _given(array, place) for place, array in enumerate(values)]
    attributes = list(node.attributes.values())
    copy = ir.Node(
        node.domain, node.op_type, given, attributes=attributes, num_outputs=len(node.outputs)
    )
    for index, value in enumerate(copy.outputs):
        value.name, value.type = f"made{index}", node.outputs[index].type
    inputs = [value for value in given if value is not None]
    graph = ir.Graph(inputs, copy.outputs, nodes=[copy], opset_imports={"": OPSET}, name="part")
    session = _open(graph)
    return run(session, *(array for array in values if array is not None))


def _open(graph: ir.Graph) -> onnxruntime.InferenceSession:
    model = ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION)).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # that it fails may be the answer
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _given(array: Array, index: int) -> ir.Value:
    kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    return ir.Value(name=f"input{index}", type=kind, shape=ir.Shape(array.shape))


def _input(value: ir.Value, number: int) -> ir.Value:
    rank = None if value.shape is None else ir.Shape([None] * len(value.shape))
    return ir.Value(name=f"input{number}", type=value.type, shape=rank)


def _source(value: ir.Value, sizes: Mapping[str, int]) -> ir.Node | None:
    """Return the node that makes a value, or a constant that does; None if it cannot be known here."""
    node = value.producer()
    if node is None:
        tensor = value.const_value
        return (
            None
            if tensor is None or is_placeholder(value)
            else _constant(ir.AttrTensor("value", tensor))
        )
    if node.op_type == "Shape" and (known := _known(node, sizes)) is not None:
        return _constant(ir.AttrInt64s("value_ints", known))
    subgraphs = any(
        attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()
    )
    return None if node.domain == SEMANTIC or subgraphs else node


def _constant(attribute: ir.Attr) -> ir.Node:
    return ir.Node("", "Constant", [], attributes=[attribute])


def _known(node: ir.Node, sizes: Mapping[str, int]) -> list[int] | None:
    """Return the result of a Shape, if sizes determine it."""
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", len(value.shape))
    known = [dim if isinstance(dim, int) else sizes.get(str(dim)) for dim in value.shape[start:end]]
    return None if None in known else known  # type: ignore[return-value]
