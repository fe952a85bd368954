# SPDX-License-Identifier: Apache-2.0
"""Repeated layers -> ONNX functions: cut the traced layers out, prove equal ones equal, and call them for all layers.

In comes the graph of the few layers that were traced; out goes the graph of the whole model. Each traced layer becomes
one call of a function; layers whose functions agree node by node share one. A layer that was not traced is called like
the traced one of its kind, with its own weights and states.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from qeff_zoo.errors import ExportError
from qeff_zoo.external_data import is_placeholder
from qeff_zoo.layers import RepeatedLayers

DOMAIN = "qeff_zoo.layers"
_STATE = re.compile(r"^(?P<name>[a-z_]+)\.(?P<layer>\d+)$")


@dataclass
class _Region:
    """The nodes of one traced layer, its operands and results."""

    layer: int
    nodes: list[ir.Node]
    inputs: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    call: ir.Node | None = None


def fold(model: ir.Model, repeated: RepeatedLayers) -> ir.Model | None:
    """Fold the traced layers of `model` in place and extend it to all layers.

    Args:
        model: Graph of the traced layers; initializers and states are numbered by place for weights, by layer for
            states.
        repeated: What was found in the module.

    Returns:
        The model, or None if two traced layers of a kind differ, so that they prove nothing about the others.

    Raises:
        ExportError: The layers are not a chain.
    """
    regions = _cut(model.graph, repeated)
    _rename_initializers(model.graph, repeated)
    functions: dict[str, ir.Function] = {}
    for region in regions:
        _bound(region, regions)
        _call(model, region, repeated.path, functions)
    complete = len(repeated.traced) == len(repeated.kinds)
    by_kind: dict[int, set[str]] = {}
    for region in regions:
        by_kind.setdefault(repeated.kinds[region.layer], set()).add(region.call.op_type)
    if not complete:
        if any(len(names) > 1 for names in by_kind.values()):
            return None
        _extend(model.graph, regions, repeated)
    model.opset_imports[DOMAIN] = 1
    return model


def _cut(graph: ir.Graph, repeated: RepeatedLayers) -> list[_Region]:
    """Group nodes by the layer in their module path; constants are copied into every layer that reads them."""
    pattern = re.compile(rf"(?:^|[/.]){re.escape(repeated.path)}\.(\d+)[.:/]")
    regions = [_Region(layer, []) for layer in repeated.traced]
    place_of: dict[ir.Node, int] = {}
    for node in graph:
        match = pattern.search(node.metadata_props.get("namespace", ""))
        if match and node.op_type != "Constant":
            place_of[node] = int(match[1])
            regions[int(match[1])].nodes.append(node)
    for place, region in enumerate(regions):
        region.nodes = _with_shared(region.nodes, place, place_of)
    return regions


def _with_shared(nodes: list[ir.Node], place: int, place_of: dict[ir.Node, int]) -> list[ir.Node]:
    """Copy into a region the constants it reads, and what another region made that depends on no layer's data."""
    copies: dict[ir.Value, ir.Value] = {}
    result: list[ir.Node] = []

    def local(value: ir.Value, reader: ir.Node) -> ir.Value:
        if value in copies:
            return copies[value]
        producer = value.producer()
        if producer is None and not _is_constant(value):
            return value
        if producer is None:
            copy = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", value.const_value)])
        elif producer.op_type == "Constant" or (
            place_of.get(producer, place) != place and _is_invariant(value, place_of)
        ):
            inputs = [item and local(item, reader) for item in producer.inputs]
            copy = _copy(producer, inputs)
        else:
            return value
        for old, new in zip(producer.outputs if producer else [value], copy.outputs, strict=True):
            new.name = f"{old.name}.{place}"
            copies[old] = new
        reader.graph.insert_before(reader, copy)
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
        node.domain, node.op_type, inputs, attributes=list(node.attributes.values()), num_outputs=len(node.outputs)
    )


def _is_constant(value: ir.Value) -> bool:
    """Tell whether a value is data of the graph's own, not of a checkpoint."""
    return value.is_initializer() and not is_placeholder(value)


def _is_invariant(value: ir.Value, place_of: dict[ir.Node, int]) -> bool:
    """Tell whether a value made inside a layer depends on nothing of that layer."""
    producer = value.producer()
    if producer is None:
        return not value.is_initializer() and _STATE.match(value.name or "") is None
    if producer not in place_of:
        return producer.op_type == "Constant" or producer.domain == ""
    return all(_is_invariant(item, place_of) for item in producer.inputs if item is not None)


def _rename_initializers(graph: ir.Graph, repeated: RepeatedLayers) -> None:
    """Number the traced layers' weights by layer, no longer by place among the traced."""
    prefix = f"{repeated.path}."
    values = [value for value in graph.initializers.values() if value.name.startswith(prefix)]
    for value in values:
        del graph.initializers[value.name]
    for value in values:
        place, _, rest = value.name.removeprefix(prefix).partition(".")
        value.name = f"{prefix}{repeated.traced[int(place)]}.{rest}"
        graph.initializers[value.name] = value


def _bound(region: _Region, regions: list[_Region]) -> None:
    """Find a region's operands in order of use, and its results that others read."""
    own = set(region.nodes)
    region.inputs = list(
        dict.fromkeys(
            value for node in region.nodes for value in node.inputs if value is not None and value.producer() not in own
        )
    )
    region.outputs = [
        output
        for node in region.nodes
        for output in node.outputs
        if output.is_graph_output() or any(user not in own for user in output.consumers())
    ]


def _call(model: ir.Model, region: _Region, path: str, functions: dict[str, ir.Function]) -> None:
    """Move a region's nodes into a function, or into the one that equals it, and leave a call."""
    form = _canonical(region)
    if form not in functions:
        functions[form] = _function(region, path, name=f"Layer{len(functions)}")
        model.functions[functions[form].identifier()] = functions[form]
    function = functions[form]
    outputs = [
        ir.Value(name=output.name, shape=output.shape, type=output.type, metadata_props=output.metadata_props)
        for output in region.outputs
    ]
    call = ir.Node(DOMAIN, function.name, region.inputs, outputs=outputs, name=f"{path}.{region.layer}")
    graph = model.graph
    graph.insert_before(region.nodes[-1], call)
    for old, new in zip(region.outputs, outputs, strict=True):
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    for node in reversed(region.nodes):
        graph.remove(node, safe=True)
    region.outputs, region.call = outputs, call


def _canonical(region: _Region) -> str:
    """Write a region without names: operators, attributes, and where every input comes from."""
    source: dict[ir.Value, str] = {value: f"arg{i}" for i, value in enumerate(region.inputs)}
    lines = []
    for number, node in enumerate(region.nodes):
        source.update({output: f"{number}:{i}" for i, output in enumerate(node.outputs)})
        inputs = ",".join("" if value is None else source[value] for value in node.inputs)
        attributes = ",".join(f"{name}={_attribute(value)}" for name, value in sorted(node.attributes.items()))
        lines.append(f"{node.domain}.{node.op_type}({inputs})[{attributes}]")
    shapes = [str(value.shape) if value.is_initializer() else "" for value in region.inputs]
    return "\n".join([*lines, *shapes, ",".join(source[output] for output in region.outputs)])


def _attribute(attribute: ir.Attr) -> str:
    value = attribute.value
    if isinstance(value, ir.TensorProtocol):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    return repr(value)


def _function(region: _Region, path: str, name: str) -> ir.Function:
    """Copy a region's nodes into a new function whose parameters are named by what they are."""
    values: dict[ir.Value | None, ir.Value | None] = {None: None}
    used: set[str] = set()
    for value in region.inputs:
        values[value] = ir.Value(name=_parameter(value, region.layer, path, used), type=value.type)
    nodes = []
    for node in region.nodes:
        outputs = [ir.Value(name=output.name.replace(f".{region.layer}_", "_")) for output in node.outputs]
        values.update(zip(node.outputs, outputs, strict=True))
        attributes = list(node.attributes.values())
        nodes.append(
            ir.Node(node.domain, node.op_type, [values[v] for v in node.inputs], attributes=attributes, outputs=outputs)
        )
    graph = ir.Graph(
        [values[value] for value in region.inputs],
        [values[output] for output in region.outputs],
        nodes=nodes,
        opset_imports={"": 18, "qeff_zoo": 1},
    )
    return ir.Function(DOMAIN, name, graph=graph, attributes=[])


def _parameter(value: ir.Value, layer: int, path: str, used: set[str]) -> str:
    """Name a function's parameter: a weight or a state without its layer number, else what the trace called it."""
    name = (value.name or "value").removeprefix(f"{path}.{layer}.").removesuffix(f".{layer}")
    while name in used:
        name += "_"
    used.add(name)
    return name


def _extend(graph: ir.Graph, regions: list[_Region], repeated: RepeatedLayers) -> None:
    """Call the layers that were not traced, in place, each like the traced layer of its kind."""
    by_layer = {region.layer: region for region in regions}
    templates = _Templates(regions, repeated)
    previous: _Region | None = None
    for layer, kind in enumerate(repeated.kinds):
        region = by_layer.get(layer)
        if region is None:
            region = templates.instantiate(graph, layer, kind, previous)
        elif previous is not None:
            templates.connect(region, previous)
        previous = region
    _sort_states(graph)


class _Templates:
    """How a layer of each kind is called: which operand is a weight, a state, the previous layer's result, or shared.

    Args:
        regions: The traced layers, folded.
        repeated: Kinds and places.
    """

    def __init__(self, regions: list[_Region], repeated: RepeatedLayers) -> None:
        self.path = repeated.path
        self.carried: dict[str, dict[int, int]] = {}  # function -> operand -> which carried result
        self.of_kind: dict[int, _Region] = {}
        for before, region in zip([None, *regions[:-1]], regions, strict=True):
            self.of_kind.setdefault(repeated.kinds[region.layer], region)
            if before is None:
                continue
            results = self._carried_results(before)
            operands = {i: results.index(value) for i, value in enumerate(region.inputs) if value in results}
            known = self.carried.setdefault(region.call.op_type, operands)
            if known != operands or not operands:
                raise ExportError(
                    f"Layers {before.layer} and {region.layer} of {self.path} are not chained like the others, so layers "
                    f"between them cannot be called like them. Expected each layer to take the results of the one before."
                )

    @staticmethod
    def _carried_results(region: _Region) -> list[ir.Value]:
        return [output for output in region.outputs if not output.is_graph_output()]

    def connect(self, region: _Region, previous: _Region) -> None:
        """Feed a traced layer from the layer that now stands before it."""
        results = self._carried_results(previous)
        for operand, result in self.carried[region.call.op_type].items():
            region.call.replace_input_with(operand, results[result])
            region.inputs[operand] = results[result]

    def instantiate(self, graph: ir.Graph, layer: int, kind: int, previous: _Region) -> _Region:
        """Call the function of `kind` for a layer that was not traced."""
        template = self.of_kind[kind]
        results = self._carried_results(previous)
        carried = self.carried[template.call.op_type]
        inputs = [
            results[carried[i]] if i in carried else self._own(graph, value, template.layer, layer)
            for i, value in enumerate(template.inputs)
        ]
        outputs = [
            ir.Value(
                name=self._renumbered(value.name, template.layer, layer) or f"{value.name}.{layer}",
                shape=value.shape,
                type=value.type,
            )
            for value in template.outputs
        ]
        call = ir.Node(DOMAIN, template.call.op_type, inputs, outputs=outputs, name=f"{self.path}.{layer}")
        graph.insert_after(previous.call, call)
        graph.outputs.extend(
            new for old, new in zip(template.outputs, outputs, strict=True) if old.is_graph_output()
        )
        return _Region(layer, [], inputs, outputs, call)

    def _own(self, graph: ir.Graph, value: ir.Value, template: int, layer: int) -> ir.Value:
        """Return the layer's own weight or state for the template's, or the value itself where it is shared."""
        name = self._renumbered(value.name, template, layer)
        if name is None:
            return value
        own = ir.Value(name=name, shape=value.shape, type=value.type, const_value=value.const_value)
        if value.is_graph_input():
            graph.inputs.append(own)
        else:
            graph.initializers[name] = own
        return own

    def _renumbered(self, name: str, template: int, layer: int) -> str | None:
        """Return the name of the layer's own weight or state, or None for a name without the layer's number."""
        weight = f"{self.path}.{template}."
        if name.startswith(weight):
            return f"{self.path}.{layer}.{name.removeprefix(weight)}"
        state = re.fullmatch(rf"([a-z_]+)\.{template}(_RetainedState)?", name)
        return f"{state[1]}.{layer}{state[2] or ''}" if state else None


def _sort_states(graph: ir.Graph) -> None:
    """Put the states in layer order again, inputs and outputs alike."""
    for values in (graph.inputs, graph.outputs):
        states = [value for value in values if re.search(r"\.\d+(_RetainedState)?$", value.name)]
        order = {value: int(re.search(r"\.(\d+)", value.name)[1]) for value in states}  # type: ignore[index]
        rest = [value for value in values if value not in order]
        ordered = [*rest, *sorted(states, key=order.__getitem__)]
        values.clear()
        values.extend(ordered)
