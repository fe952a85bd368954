# SPDX-License-Identifier: Apache-2.0
"""A lowered graph -> the graph of one specialization: symbols bound, functions inlined, what is known folded."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.graph.passes import narrowing, parts, sequences
from qeff_zoo.graph.passes.parts import Array
from qeff_zoo.graph.passes.routing import return_choices
from qeff_zoo.graph.semantic import domains

from . import recurrence, rewrites

_LARGEST = 1 << 22  # bytes of a constant that is computed here, and of what it is computed from
_FEW = 64  # numbers of a constant that a shape may have


def _as_input(context: Any) -> None:
    context.set_output_type(0, context.get_input_type(0))


def _as_product(context: Any) -> None:
    product = onnx.TypeProto()
    product.CopyFrom(context.get_input_type(0))
    if product.tensor_type.HasField("shape"):
        product.tensor_type.shape.dim[-1].Clear()
        product.tensor_type.shape.dim[-1].dim_value = context.get_attribute("N").i
    context.set_output_type(0, product)


#: Ops of ONNX Runtime that HTP's compiler takes: onnx's shape inference stops at what it does not know.
_KNOWN: Mapping[tuple[str, str], tuple[int, dict[str, str], Callable[[Any], None]]] = {
    ("", "SimplifiedLayerNormalization"): (
        2,
        {"axis": "INT", "epsilon": "FLOAT", "stash_type": "INT"},
        _as_input,
    ),
    ("com.microsoft", "MatMulNBits"): (
        4,
        dict.fromkeys(("K", "N", "bits", "block_size"), "INT"),
        _as_product,
    ),
}


def _make_known() -> None:
    """Register shape inference for these ops."""
    defs = onnx.defs
    option = defs.OpSchema.FormalParameterOption.Optional
    for (domain, name), (count, attributes, infer) in _KNOWN.items():
        if defs.has(name, domain):
            continue
        every = [f"T{place}" for place in range(count)]
        inputs = [
            defs.OpSchema.FormalParameter(f"input{place}", kind, param_option=option)
            for place, kind in enumerate(every)
        ]
        schema = defs.OpSchema(
            name,
            domain,
            1,
            inputs=inputs,
            outputs=[defs.OpSchema.FormalParameter("y", "T0")],
            attributes=[
                defs.OpSchema.Attribute(key, getattr(defs.OpSchema.AttrType, kind), required=False)
                for key, kind in attributes.items()
            ],
            type_constraints=[(kind, ["tensor(float)", "tensor(uint8)"], "") for kind in every],
        )
        schema.set_type_and_shape_inference_function(infer)
        defs.register_schema(schema)


def bind(model: ir.Model, symbols: Mapping[str, int]) -> None:
    """Give every symbol its size, in place, and let the graph return its choices.

    Args:
        model: Lowered; weights may lie in a file.
        symbols: Size by name.
    """
    for value in [*model.graph.inputs, *model.graph.outputs]:
        assert value.shape is not None
        value.shape = ir.Shape(
            [dim if isinstance(dim, int) else symbols.get(str(dim)) for dim in value.shape]
        )
    onnx_passes.InlinePass(lambda function: function.name not in recurrence.OPS)(model)
    sequences.slice_parts(model.graph)
    _fold(model.graph)
    recurrence.expand(model.graph)
    _simplify(model)
    narrowing.narrow(model)
    rewrites.rewrite(model.graph)
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    onnx_passes.RemoveUnusedOpsetsPass()(model)
    for value in [value for value in model.graph.inputs if not value.uses()]:
        model.graph.inputs.remove(value)  # of compute contexts, only the length matters
    return_choices(model.graph)


def _simplify(model: ir.Model) -> None:
    """Put ops in place of others by what is known of them; remove what nothing reads."""
    onnx_passes.RemoveUnusedNodesPass()(model)
    onnxscript.optimizer.optimize_ir(
        model,
        num_iterations=1,
        onnx_shape_inference=False,
        inline=False,
        input_size_limit=_LARGEST,
        output_size_limit=_LARGEST,
    )
    onnx_passes.RemoveUnusedNodesPass()(model)


def _fold(graph: ir.Graph) -> None:
    """Compute what depends on no input, and every shape, each node once after those before it."""
    _make_known()
    known = {
        value: value.const_value.numpy()
        for value in graph.initializers.values()
        if value.const_value is not None
        and value.const_value.nbytes <= _LARGEST
        and not isinstance(value.const_value, ir.ExternalTensor)
    }
    for node in list(graph):
        values = _values(node, known)
        if values is None:
            _infer(node, graph.opset_imports, known)
            continue
        for value, array in zip(node.outputs, values, strict=True):
            known[value] = array
            name = f"{value.name}.known"
            tensor = ir.tensor(array, name=name)
            constant = ir.Value(
                name=name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
            if value.is_graph_output():
                continue
            ir.convenience.replace_all_uses_with(value, constant)
            known[constant] = array
            if constant.uses():
                graph.initializers[name] = constant


def _values(node: ir.Node, known: Mapping[ir.Value, Array]) -> list[Array] | None:
    """Return what a node makes, if that depends on no input and is not large."""
    inputs = [value for value in node.inputs if value is not None]
    if node.op_type == "Shape" and node.domain == "":
        shape = inputs[0].shape
        if shape is None or not shape.is_static():
            return None
        first, last = (
            node.attributes.get_int("start", 0),
            node.attributes.get_int("end", len(shape)),
        )
        return [np.array(shape.numpy()[first:last], np.int64)]
    if any(value not in known for value in inputs) or node.domain != "":
        return None
    if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
        return None
    values = [None if value is None else known[value] for value in node.inputs]
    with suppress(*parts.FAILURES):
        computed = parts.evaluate(node, values)
        return computed if all(value.nbytes <= _LARGEST for value in computed) else None
    return None


def _infer(node: ir.Node, opsets: Mapping[str, int], known: Mapping[ir.Value, Array]) -> None:
    """Infer types and shapes of a node's outputs, if its op has an inference function."""
    for value in node.outputs:
        if not value.is_graph_output():
            value.shape = None
    inputs = [value for value in node.inputs if value is not None]
    if any(value.type is None for value in inputs):
        return
    if (
        node.domain == domains.SEMANTIC
    ):  # a recurrence: its result is as its values, and its state as before
        for value, like in zip(node.outputs, (inputs[3], inputs[0]), strict=True):
            value.type, value.shape = like.type, like.shape
        return
    types = {str(value.name): _type(value) for value in inputs}
    data = {
        str(value.name): onnx.numpy_helper.from_array(known[value])
        for value in inputs
        if value in known and known[value].size <= _FEW
    }
    schema = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
    proto = ir.serde.serialize_node(node)
    inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data)
    for value in node.outputs:
        if value.name in inferred and not value.is_graph_output():
            value.type = ir.serde.deserialize_type_proto_for_type(inferred[value.name])
            value.shape = ir.serde.deserialize_type_proto_for_shape(inferred[value.name])


def _type(value: ir.Value) -> onnx.TypeProto:
    assert value.type is not None
    proto = ir.serde.serialize_type(value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto
