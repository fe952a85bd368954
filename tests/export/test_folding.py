# SPDX-License-Identifier: Apache-2.0
"""Folded layers: one function a kind, and a graph extended from a few layers is the graph of all layers."""

import copy
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import parity
import pytest
from parity import Subject

from qeff_zoo.contract import find
from qeff_zoo.export import exporter, folding
from qeff_zoo.export.layers import RepeatedLayers
from qeff_zoo.graph import external_data
from qeff_zoo.graph.semantic.domains import SEMANTIC
from qeff_zoo.multimodal.manifest import entry_of
from qeff_zoo.registry import find_recipe

pytestmark = pytest.mark.turns(3)

#: Deeper than the tiny configs, so that most layers are extended: by name, changes and traced layers.
DEEP: dict[str, tuple[str, dict[str, Any]]] = {
    "alike": ("llama-base", {"num_hidden_layers": 5}),
    "alternating": ("gemma2-base", {"num_hidden_layers": 6}),
    "shared mask of heads": ("falcon-alibi", {}),
    "fewer tokens in later layers": ("llama_swiftkv-base", {"num_hidden_layers": 8}),
}


@cache
def both(name: str) -> tuple[Subject, ir.Model, ir.Model]:
    """Export a deep model from a few of its layers, and from all of them."""
    case, changes = DEEP[name]
    subject = Subject(
        {**parity.all_cases()[case].config, **changes}, parity.all_cases()[case].recipe
    )
    return subject, subject.graph(), subject.graph(everything=True)


def calls_of(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == folding.DOMAIN]


def layers_of(model: ir.Model) -> list[ir.Function]:
    return [f for f in model.functions.values() if f.domain == folding.DOMAIN]


def text_of(function: ir.Function) -> list[str]:
    """Write a function without the names of values."""
    numbers: dict[ir.Value | None, str] = {None: ""}
    for value in [*function.inputs, *(out for node in function for out in node.outputs)]:
        numbers[value] = f"%{len(numbers)}"
    lines = [
        f"{node.domain}.{node.op_type}({', '.join(numbers[value] for value in node.inputs)}) "
        f"{sorted((name, attribute_text(item)) for name, item in node.attributes.items())}"
        for node in function
    ]
    return [*lines, ", ".join(numbers[value] for value in function.outputs)]


def attribute_text(attribute: ir.Attr) -> str:
    value = attribute.value
    if isinstance(value, ir.TensorProtocol):
        return f"{value.dtype} {value.shape} {value.numpy().tolist()}"
    return str(value)


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.sampled(99, kept=["alike"])
def test_extended_graph_is_the_graph_of_all_layers(name: str) -> None:
    subject, extended, whole = both(name)
    assert len(calls_of(extended)) == len(calls_of(whole)) == subject.config["num_hidden_layers"]
    for values in ("inputs", "outputs"):
        described = [
            [(value.name, value.dtype, str(value.shape)) for value in getattr(model.graph, values)]
            for model in (extended, whole)
        ]
        assert described[0] == described[1]
    weights = [
        {
            name: (str(value.shape), value.dtype)
            for name, value in model.graph.initializers.items()
            if external_data.is_placeholder(value)
        }
        for model in (extended, whole)
    ]
    assert weights[0] == weights[1]
    assert len(extended.graph.initializers) == len(whole.graph.initializers)
    texts = [sorted(map(text_of, layers_of(model))) for model in (extended, whole)]
    assert texts[0] == texts[1]
    kinds = [[node.op_type for node in calls_of(model)] for model in (extended, whole)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.sampled(99, kept=["alike"])
def test_extended_graph_computes_what_all_layers_do(name: str, tmp_path: Path) -> None:
    subject, *graphs = both(name)
    ids = parity.tokens()
    expected, noise = parity.reference(subject.hf, ids), parity.noise(subject, ids)
    logits = []
    for number, graph in enumerate(graphs):
        path = subject.save_with_weights(graph, tmp_path / f"{number}.onnx")
        steps = parity.session_steps(parity.open_session(path), parity.ROWS)
        positions = np.tile(np.arange(parity.PROMPT), (parity.ROWS, 1))
        logits.append(steps.step(ids, positions))
    np.testing.assert_array_equal(logits[0], logits[1])
    away = np.abs(logits[0] - expected[:, -1]).max()
    assert away <= parity.TOLERANCE["portable"] * noise


#: Models that pick layers of their towers by number; deep enough for others between those.
SEEING: dict[str, tuple[str, dict[str, Any]]] = {
    "last but one": ("llava", {"num_hidden_layers": 5}),
    "deepstack": ("qwen3_vl", {"depth": 5, "deepstack_visual_indexes": [0, 3]}),
}


def graph_text(model: ir.Model) -> tuple[list[str], ...]:
    """Write a graph without the names of values that it computes; weights by name."""
    texts: dict[ir.Value | None, str] = {None: ""}
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        known = None if external_data.is_placeholder(value) else value.const_value
        texts[value] = value.name or "" if known is None else str(known.numpy().tolist())
    for node in model.graph:
        items = sorted((name, attribute_text(item)) for name, item in node.attributes.items())
        read = ",".join(texts[value] for value in node.inputs)
        whole = hashlib.sha256(f"{node.domain}.{node.op_type}({read}){items}".encode()).hexdigest()
        texts.update({value: f"{i} of {whole}" for i, value in enumerate(node.outputs)})
    calls = [node.name or "" for node in calls_of(model)]
    return calls, [texts[value] for value in model.graph.outputs], *map(text_of, layers_of(model))


@pytest.mark.parametrize("name", SEEING if parity.EVERY else ["deepstack"])
@pytest.mark.full
def test_layers_that_are_picked_by_number_are_extended_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_type, changes = SEEING[name]
    recipe = find_recipe(model_type)
    assert recipe.images
    config = {"model_type": model_type, **copy.deepcopy(recipe.tiny[0].config)}
    config["vision_config"].update(changes)
    variant = {"images": entry_of(recipe.images)}
    traced = []
    fold = folding.fold

    def noted(graph: ir.Model, repeated: RepeatedLayers) -> bool:
        traced.append(len([*graph.graph]))
        return fold(graph, repeated)

    monkeypatch.setattr(folding, "fold", noted)
    part = find(recipe.task).parts["vision"]
    extended, whole = (
        exporter._attempt(config, recipe, part, everything=everything, **variant)
        for everything in (False, True)
    )
    assert extended
    assert whole
    assert traced[0] < traced[1]
    assert graph_text(extended) == graph_text(whole)


def test_kinds_that_differ_in_their_mask_alone_share_a_function() -> None:
    _, extended, whole = both("alternating")
    for model in (extended, whole):
        calls = calls_of(model)
        assert len(layers_of(model)) == len({node.op_type for node in calls}) == 1
        operands = list(zip(*(node.inputs for node in calls), strict=True))
        distinct = [len(set(values)) for values in operands]
        assert sorted(set(distinct)) == [1, 2, 6]  # shared by all, by half of them, own
        masks = operands[distinct.index(2)]
        assert distinct.count(2) == 1
        assert masks == masks[:2] * 3


def test_names_in_functions_contain_no_layer_number() -> None:
    _, extended, _ = both("alike")
    (function,) = layers_of(extended)
    names = [value.name or "" for value in function.inputs]
    assert {"self_attn.q_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"} <= set(
        names
    )
    assert {"past_key", "past_value", "position_ids"} <= set(names)
    inner = [value.name or "" for node in function for value in node.outputs]
    assert len(set(inner)) == len(inner)
    for name in [*names, *inner]:
        assert not re.search(r"layers[._]\d", name)


def test_calls_name_their_layer_and_read_its_weights() -> None:
    _, extended, _ = both("alike")
    for layer, node in enumerate(calls_of(extended)):
        assert node.name == f"model.layers.{layer}"
        read = [v.name or "" for v in node.inputs if v is not None and v.is_initializer()]
        weights = [name for name in read if name.startswith("model.layers.")]
        assert len(weights) == 9
        assert all(name.startswith(f"model.layers.{layer}.") for name in weights)
        states = [v.name for v in node.inputs if v is not None and v.name.startswith("past_")]
        assert states == [f"past_key.{layer}", f"past_value.{layer}"]
        made = [value.name for value in node.outputs if value.is_graph_output()]
        assert made == [f"past_key.{layer}_RetainedState", f"past_value.{layer}_RetainedState"]


def test_functions_hold_no_weights() -> None:
    _, extended, _ = both("alike")
    for function in extended.functions.values():
        for node in function:
            tensors = [
                a.value for a in node.attributes.values() if a.type == ir.AttributeType.TENSOR
            ]
            assert all(tensor.size <= 16 for tensor in tensors)


def test_every_layer_is_in_a_function() -> None:
    """What is left outside is what comes before and after the layers."""
    _, extended, whole = both("alike")
    for model in (extended, whole):
        for node in model.graph:
            read = [v.name for v in node.inputs if v is not None and v.is_initializer()]
            if node.domain != folding.DOMAIN:
                assert not any("layers." in name for name in read if name)
        outside = {node.op_type for node in model.graph if node.domain == SEMANTIC}
        assert outside == {"CausalMask", "RMSNorm", "Linear"}


def test_placeholders_of_layers_have_no_data() -> None:
    extended = both("alike")[0].graph()  # one of our own: the others' have been given weights
    weights = [v for name, v in extended.graph.initializers.items() if ".layers." in f".{name}"]
    assert len(weights) == 5 * 9
    assert all(external_data.is_placeholder(value) for value in weights)


def test_deep_graphs_are_folded_without_recursion() -> None:
    first = ir.Node("", "Identity", [ir.Value(name="hidden")])
    nodes = [first]
    for _ in range(2000):
        nodes.append(ir.Node("", "Identity", [nodes[-1].outputs[0]]))
    assert folding._is_invariant(nodes[-1].outputs[0], dict.fromkeys(nodes, 0))
    weight = ir.Value(name="weight")
    ir.Graph([], [nodes[-1].outputs[0]], nodes=nodes, initializers=[weight])
    first.replace_input_with(0, weight)
    assert not folding._is_invariant(nodes[-1].outputs[0], dict.fromkeys(nodes, 0))
