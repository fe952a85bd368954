# SPDX-License-Identifier: Apache-2.0
"""Folding of repeated layers into ONNX functions: extraction, proof of equality, and calls for all layers.

Input: the graph of the few traced layers. Output: the graph of the whole model. Each traced layer becomes one call of a
    function; layers whose functions are equal node by node share one. An untraced layer is called like the traced one
    of its kind, with its own weights and states.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from qeff_zoo.export.chaining import Call
from qeff_zoo.export.layers import RepeatedLayers
from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.semantic import domains
from qeff_zoo.graph.semantic.domains import LAYERS as DOMAIN
from qeff_zoo.graph.states import layer_of

from . import chaining


def fold(model: ir.Model, repeated: RepeatedLayers) -> bool:
    """Fold the traced layers of `model` in place and extend it to all layers.

    Args:
        model: Graph of the traced layers, without those at the end that nothing reads.
        repeated: Repeated layers of the module.

    Returns:
        False if two traced layers of a kind differ, so that the others of the kind are unknown.

    Raises:
        ExportError: The layers are not a chain.
    """
    regions, repeated = _needed(_cut(model.graph, repeated), repeated)
    functions: dict[str, ir.Function] = {}
    calls = [
        _call(model, layer, nodes, repeated.path, functions)
        for layer, nodes in zip(repeated.traced, regions, strict=True)
    ]
    model.opset_imports[DOMAIN] = 1
    if len(repeated.traced) == len(repeated.kinds):
        return True
    by_kind: dict[int, set[str]] = {}
    for call in calls:
        by_kind.setdefault(repeated.kinds[call.layer], set()).add(call.node.op_type)
    if any(len(names) > 1 for names in by_kind.values()) or not chaining.is_chain(calls, repeated):
        return False
    chaining.extend(model.graph, calls, repeated)
    return True


def _needed(
    regions: list[list[ir.Node]], repeated: RepeatedLayers
) -> tuple[list[list[ir.Node]], RepeatedLayers]:
    """Drop unread layers at the end, such as those after the one whose states a model takes."""
    count = max(place for place, nodes in enumerate(regions, 1) if nodes)
    traced = repeated.traced[:count]
    if count < len(regions):
        repeated = replace(repeated, kinds=repeated.kinds[: traced[-1] + 1], traced=traced)
    return regions[:count], repeated


def _cut(graph: ir.Graph, repeated: RepeatedLayers) -> list[list[ir.Node]]:
    """Group nodes by the layer in their module path; constants are copied into every layer that reads them."""
    # For a module that is held twice, torch.export records the slice by which a layer was taken.
    path = rf"{re.escape(repeated.path)}(?:\.slice\(None, \d+, None\))?"
    pattern = re.compile(rf"(?:^|[/.]){path}\.(\d+)[.:/]")
    regions: list[list[ir.Node]] = [[] for _ in repeated.traced]
    place_of: dict[ir.Node, int] = {}
    for node in graph:
        layer = _place(node, pattern, repeated.traced, place_of)
        if layer is not None and node.op_type != "Constant":
            place_of[node] = layer
            regions[layer].append(node)
    return [_with_shared(graph, nodes, place, place_of) for place, nodes in enumerate(regions)]


def _place(
    node: ir.Node, pattern: re.Pattern[str], traced: Sequence[int], place_of: dict[ir.Node, int]
) -> int | None:
    """Return a node's layer: by its module path, or by its inputs if a rewriting removed the path."""
    namespace = node.metadata_props.get("namespace")
    if namespace is not None:
        match = pattern.search(namespace)
        return traced.index(int(match[1])) if match else None
    producers = [value.producer() for value in node.inputs if value is not None]
    return max((place_of[node] for node in producers if node in place_of), default=None)


def _with_shared(
    graph: ir.Graph, nodes: list[ir.Node], layer: int, place_of: dict[ir.Node, int]
) -> list[ir.Node]:
    """Copy into a region its constants, and values of other regions that depend on no layer's data."""
    copies: dict[ir.Value, ir.Value] = {}
    result: list[ir.Node] = []

    def local(value: ir.Value, reader: ir.Node) -> ir.Value:
        if value in copies:
            return copies[value]
        producer = value.producer()
        if producer is None:
            if not value.is_initializer() or value.const_value is None or is_placeholder(value):
                return value
            copy = ir.Node(
                "", "Constant", [], attributes=[ir.AttrTensor("value", value.const_value)]
            )
        elif producer.op_type == "Constant" or (
            place_of.get(producer, layer) != layer and _is_invariant(value, place_of)
        ):
            inputs = [item and local(item, reader) for item in producer.inputs]
            copy = _copy(producer, inputs)
        else:
            return value
        for old, new in zip(producer.outputs if producer else [value], copy.outputs, strict=True):
            new.name = f"{old.name}.{layer}"
            copies[old] = new
        graph.insert_before(reader, copy)
        result.append(copy)
        return copies[value]

    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is not None and local(value, node) is not value:
                node.replace_input_with(index, copies[value])
        result.append(node)
    return result


def _copy(node: ir.Node, inputs: list[ir.Value | None]) -> ir.Node:
    return ir.Node(
        node.domain,
        node.op_type,
        inputs,
        attributes=list(node.attributes.values()),
        num_outputs=len(node.outputs),
    )


def _is_invariant(value: ir.Value, place_of: dict[ir.Node, int]) -> bool:
    """Return whether a value made inside a layer depends on nothing in that layer."""
    # A deep model has thousands, beyond the recursion limit.
    left, visited = [value], set[ir.Value]()
    while left:
        one = left.pop()
        producer = one.producer()
        if producer is None:
            if one.is_initializer() or layer_of(one) is not None:
                return False
        elif producer in place_of:
            fresh = [item for item in producer.inputs if item is not None and item not in visited]
            left += fresh
            visited.update(fresh)
        elif producer.op_type != "Constant" and producer.domain:
            return False
    return True


def _call(
    model: ir.Model, layer: int, nodes: list[ir.Node], path: str, functions: dict[str, ir.Function]
) -> Call:
    """Move a layer's nodes into a function, or into the one that equals it, and leave a call."""
    results = _results(nodes)
    ordered = _by_need(nodes, results)
    inputs = _operands(ordered)
    form = _canonical(ordered, inputs, results)
    if form not in functions:
        functions[form] = _function(
            ordered, inputs, results, f"{path}.{layer}", f"Layer{len(functions)}"
        )
        model.functions[functions[form].identifier()] = functions[form]
    outputs = [ir.Value(name=value.name, shape=value.shape, type=value.type) for value in results]
    node = ir.Node(DOMAIN, functions[form].name, inputs, outputs=outputs, name=f"{path}.{layer}")
    model.graph.insert_before(nodes[-1], node)
    for old, new in zip(results, outputs, strict=True):
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    for moved in reversed(nodes):
        model.graph.remove(moved, safe=True)
    return Call(layer, node, inputs, outputs)


def _by_need(nodes: list[ir.Node], results: list[ir.Value]) -> list[ir.Node]:
    """Sort nodes by their readers, each after its inputs: layers with equal computations get equal orders."""
    own, done = set(nodes), dict[ir.Node, None]()
    stack = [value.producer() for value in reversed(results)]
    while stack:
        node = stack[-1]
        read = [value.producer() for value in (node.inputs if node else ()) if value is not None]
        missing = [before for before in read if before in own and before not in done]
        if missing:
            stack.append(missing[0])
            continue
        stack.pop()
        if node is not None:
            done[node] = None
    return list(done)


def _operands(nodes: list[ir.Node]) -> list[ir.Value]:
    """Return the values of other nodes that nodes read, in order of use."""
    own = set(nodes)
    read = (value for node in nodes for value in node.inputs if value is not None)
    return list(dict.fromkeys(value for value in read if value.producer() not in own))


def _results(nodes: list[ir.Node]) -> list[ir.Value]:
    """Return the values of nodes that others read."""
    own = set(nodes)
    return [
        output
        for node in nodes
        for output in node.outputs
        if output.is_graph_output() or any(user not in own for user in output.consumers())
    ]


def _canonical(nodes: list[ir.Node], inputs: list[ir.Value], results: list[ir.Value]) -> str:
    """Return a layer without names: operators, attributes, and the origin of every input."""
    source: dict[ir.Value, str] = {value: f"arg{i}" for i, value in enumerate(inputs)}
    lines: list[str] = []
    for node in nodes:
        attributes = ",".join(
            f"{name}={_attribute(value)}" for name, value in sorted(node.attributes.items())
        )
        if node.op_type == "Constant":  # by value, whatever the number of its readers
            source[node.outputs[0]] = f"[{attributes}]"
            continue
        source.update({output: f"{len(lines)}:{i}" for i, output in enumerate(node.outputs)})
        read = ",".join("" if value is None else source[value] for value in node.inputs)
        lines.append(f"{node.domain}.{node.op_type}({read})[{attributes}]")
    shapes = [str(value.shape) if value.is_initializer() else "" for value in inputs]
    return "\n".join([*lines, *shapes, ",".join(source[output] for output in results)])


def _attribute(attribute: ir.Attr) -> str:
    value = attribute.value
    if isinstance(value, ir.TensorProtocol):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    return repr(value)


def _function(
    nodes: list[ir.Node], inputs: list[ir.Value], results: list[ir.Value], prefix: str, name: str
) -> ir.Function:
    """Copy a layer's nodes into a function whose parameter names describe them."""
    layer = prefix.rpartition(".")[2]
    used: set[str] = set()
    parameters = [
        ir.Value(name=_parameter(value, prefix, layer, used), type=value.type) for value in inputs
    ]
    values: dict[ir.Value, ir.Value] = dict(zip(inputs, parameters, strict=True))
    copies = []
    for node in nodes:
        outputs = [
            ir.Value(name=(output.name or "").replace(f".{layer}_", "_")) for output in node.outputs
        ]
        values.update(zip(node.outputs, outputs, strict=True))
        read = [None if value is None else values[value] for value in node.inputs]
        attributes = list(node.attributes.values())
        copies.append(
            ir.Node(node.domain, node.op_type, read, attributes=attributes, outputs=outputs)
        )
    imports = {"": domains.OPSET, domains.SEMANTIC: 1}
    graph = ir.Graph(
        parameters, [values[value] for value in results], nodes=copies, opset_imports=imports
    )
    return ir.Function(DOMAIN, name, graph=graph, attributes=[])


def _parameter(value: ir.Value, prefix: str, layer: str, used: set[str]) -> str:
    """Return the name of a function's parameter: a weight or a state without its layer number, else the traced name."""
    name = (value.name or "value").removeprefix(f"{prefix}.").removesuffix(f".{layer}")
    while name in used:
        name += "_"
    used.add(name)
    return name
