# SPDX-License-Identifier: Apache-2.0
"""Calls of the layers that were not traced, like the traced one of their kind, with their own weights and states.

Input: a graph with calls of the traced layers. Output: the graph of all layers. The origin of a call's operand (the
    result of the previous layer, a weight, a state, or a value shared by all) is derived from the traced calls.
"""

from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from qeff_zoo.errors import ExportError
from qeff_zoo.export.layers import RepeatedLayers
from qeff_zoo.graph.states import layer_of, mark_layer, states_of


@dataclass(frozen=True)
class Call:
    """Call of one folded layer.

    Args:
        layer: Index in the full model.
        node: Node of the call.
        inputs: Operands, in the order of the function's parameters.
        outputs: Results.
    """

    layer: int
    node: ir.Node
    inputs: list[ir.Value]
    outputs: list[ir.Value]


def is_chain(calls: list[Call], repeated: RepeatedLayers) -> bool:
    """Return whether each layer's results are read by no other layer than the next traced one.

    Other readers must read that layer's results, not those of a later untraced one.
    """
    nodes = {call.node for call in calls}
    for call, following in pairwise(calls):
        readers = {user for value in _carried(call) for user in value.consumers()}
        others = readers - {following.node}
        known = following.layer == call.layer + 1 or call.layer in repeated.read
        if others & nodes or (others and not known):
            return False
    return True


def extend(graph: ir.Graph, calls: list[Call], repeated: RepeatedLayers) -> None:
    """Insert calls of all other layers.

    Args:
        graph: Changed in place.
        calls: The traced layers in order; those of one kind call one function.
        repeated: Kinds and paths of all layers.

    Raises:
        ExportError: The traced layers do not take their results from one another, or in different ways.
    """
    chain = _Chain(graph, calls, repeated)
    traced = {call.layer: call for call in calls}
    last = calls[0]
    for layer in range(last.layer + 1, len(repeated.kinds)):
        if layer in traced:
            if layer - 1 not in traced:
                chain.feed(traced[layer], last)
            last = traced[layer]
        else:
            last = chain.insert(layer, last)
    _sort_by_layer(graph)


class _Chain:
    def __init__(self, graph: ir.Graph, calls: list[Call], repeated: RepeatedLayers) -> None:
        self.graph, self.path, self.kinds = graph, repeated.path, repeated.kinds
        self.states = {
            name: state for state in states_of(graph.inputs) for name in (state.name, state.output)
        }
        #: Layer index of other inputs that belong to one layer.
        self.given = {
            value.name: layer
            for value in graph.inputs
            if value.name not in self.states and (layer := layer_of(value)) is not None
        }
        self.template: dict[int, Call] = {}
        self.carried: dict[str, dict[int, int]] = {}  # function -> operand -> which carried result
        for call in calls:
            self.template.setdefault(self.kinds[call.layer], call)
        for before, call in pairwise(calls):
            results = _carried(before)
            operands = {
                i: results.index(value) for i, value in enumerate(call.inputs) if value in results
            }
            if before.layer in repeated.apart:
                continue  # something lies between them, and no layer has to be called there
            known = self.carried.setdefault(call.node.op_type, operands)
            if known != operands or not operands:
                raise ExportError(
                    f"Layers {before.layer} and {call.layer} of {self.path} are not chained like the others, so the "
                    f"layers between them cannot be called like them. Expected each layer to take the results of the "
                    f"one before it."
                )

    def feed(self, call: Call, before: Call) -> None:
        """Connect a traced layer to the layer that now precedes it."""
        results = _carried(before)
        for operand, result in self.carried[call.node.op_type].items():
            call.node.replace_input_with(operand, results[result])

    def insert(self, layer: int, before: Call) -> Call:
        """Insert the call of an untraced layer after the previous one."""
        template = self.template[self.kinds[layer]]
        results, carried = _carried(before), self.carried[template.node.op_type]
        inputs = [
            results[carried[i]] if i in carried else self._own(value, template.layer, layer)
            for i, value in enumerate(template.inputs)
        ]
        outputs = [
            ir.Value(
                name=self._renumbered(value, template.layer, layer) or f"{value.name}.{layer}",
                shape=value.shape,
                type=value.type,
            )
            for value in template.outputs
        ]
        node = ir.Node(
            template.node.domain,
            template.node.op_type,
            inputs,
            outputs=outputs,
            name=f"{self.path}.{layer}",
        )
        self.graph.insert_after(before.node, node)
        for old, new in zip(template.outputs, outputs, strict=True):
            if old.is_graph_output():
                self.graph.outputs.append(new)
        return type(template)(layer, node, inputs, outputs)

    def _own(self, value: ir.Value, template: int, layer: int) -> ir.Value:
        """Return the layer's own weight or state in place of the template's, or a shared value unchanged."""
        name = self._renumbered(value, template, layer)
        if name is None:
            return value
        own = ir.Value(name=name, shape=value.shape, type=value.type, const_value=value.const_value)
        if value.is_graph_input():
            own.metadata_props.update(value.metadata_props)
            mark_layer(own, layer)
            self.graph.inputs.append(own)
        else:
            self.graph.initializers[name] = own
        return own

    def _renumbered(self, value: ir.Value, template: int, layer: int) -> str | None:
        """Return the name of the layer's own weight or state, or None for a name without the template's number."""
        name, weight = value.name or "", f"{self.path}.{template}."
        if name.startswith(weight):
            return f"{self.path}.{layer}.{name.removeprefix(weight)}"
        if self.given.get(name) == template:
            return f"{name.removesuffix(f'.{template}')}.{layer}"
        state = self.states.get(name)
        if state is None or state.layer != template:
            return None
        own = state.of_layer(layer)
        return own.name if name == state.name else own.output


def _carried(call: Call) -> list[ir.Value]:
    """Return the results for the next layer: all that the graph does not return."""
    return [output for output in call.outputs if not output.is_graph_output()]


def _sort_by_layer(graph: ir.Graph) -> None:
    """Sort states, inputs and outputs of layers by the layer, followed by other inputs."""
    states = states_of(graph.inputs)
    layers = {name: state.layer for state in states for name in (state.name, state.output)}
    after = 1 + max(layers.values(), default=0)
    for value in graph.inputs:
        if value.name not in layers and (layer := layer_of(value)) is not None:
            layers[value.name or ""] = after + layer
    for values in (graph.inputs, graph.outputs):
        ordered = sorted(values, key=lambda value: layers.get(value.name or "", -1))
        values.clear()
        values.extend(ordered)
