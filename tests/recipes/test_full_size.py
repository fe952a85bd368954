# SPDX-License-Identifier: Apache-2.0
"""Published checkpoints at full size, without weights: their graphs have the parameters and the cache that they should.

`full_size_configs.json` holds public configurations, the published number of parameters, exact unless there is a
relative `tolerance`, and what the cache holds for a token by the architecture's description: in how many layers, of how
many heads, how wide a key and a value.
"""

import json
import math
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir
import parity
import pytest
from accelerate import init_empty_weights
from checkout import TESTS
from fixtures_full_size import without_weights
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from qeff_zoo import registry
from qeff_zoo.export import exporter

_LISTED = json.loads((TESTS / "full_size_configs.json").read_bytes())
_LARGEST = {
    entry["model_type"]: entry for entry in sorted(_LISTED, key=lambda one: one["parameters"])
}
#: Unless every one is asked for, the largest of those whose recipes are traced at tiny size: see `parity.is_traced`.
PUBLISHED: dict[str, dict[str, Any]] = {
    entry["model_id"]: entry
    for entry in (_LISTED if parity.EVERY else _LARGEST.values())
    if parity.is_traced(registry.find_recipe(entry["model_type"]))
}
FP16 = 2  # bytes
pytestmark = pytest.mark.sampled(3)  # of models
# Whose cache is larger than it need be.
REPEATED = {
    "tiiuae/falcon-40b": "transformers repeats its 8 KV heads to 128 before they are cached"
}


@pytest.fixture(
    scope="module",  # the tests of one model come together: its graph is traced once
    params=[pytest.param(name, marks=pytest.mark.together(name)) for name in PUBLISHED],
)
def model_id(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@lru_cache(1)
def graph_of(model_id: str) -> ir.Model:
    published = PUBLISHED[model_id]
    recipe = registry.find_recipe(published["model_type"])
    config = {"model_type": published["model_type"], **published["config"]}
    return exporter.export_graph(config, recipe)


@lru_cache(1)
def hugging_face(model_id: str) -> Any:
    """Make transformers' own model, untouched, on the meta device."""
    published = PUBLISHED[model_id]
    config = CONFIG_MAPPING[published["model_type"]].from_dict(published["config"])
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return model


def weights_of(graph: ir.Model, model: Any) -> dict[int, int]:
    """Return the size of each weight that a graph reads, by the model's parameter that it is; tied ones are one."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    read = {name: value for name, value in graph.graph.initializers.items() if value.uses()}
    return {
        id(parameters[name]): math.prod(value.shape.numpy())
        for name, value in read.items()
        if name in parameters and value.shape is not None
    }


def cache_bytes(graph: ir.Model) -> int:
    """Return what one token takes in float16: a row of every key and value."""
    states = [value for value in graph.graph.inputs if str(value.name).startswith("past_")]
    rows = [(value.shape[1], value.shape[3]) for value in states if value.shape is not None]
    assert len(rows) == len(states)
    return FP16 * sum(int(heads) * int(width) for heads, width in rows)


def test_parameters_are_those_published(model_id: str) -> None:
    published, model = PUBLISHED[model_id], hugging_face(model_id)
    found = sum(weights_of(graph_of(model_id), model).values())
    assert found == model.num_parameters()
    assert found == pytest.approx(published["parameters"], rel=published.get("tolerance", 0), abs=0)


def test_the_cache_has_the_size_of_the_architecture(
    model_id: str, request: pytest.FixtureRequest
) -> None:
    if model_id in REPEATED:
        request.applymarker(pytest.mark.xfail(reason=REPEATED[model_id]))
    settings = PUBLISHED[model_id]["cache"]
    expected = FP16 * settings["layers"] * settings["heads"] * (settings["key"] + settings["value"])
    assert cache_bytes(graph_of(model_id)) == expected


def test_the_graph_is_valid(model_id: str) -> None:
    onnx.checker.check_model(without_weights(graph_of(model_id)), full_check=True)


@pytest.mark.full  # else this model is not traced
@pytest.mark.together("google/gemma-2-2b")
def test_a_lost_weight_shows() -> None:
    """Gemma 2 2B has one matrix at both ends: it counts once, and a norm less is not what was published."""
    name = "google/gemma-2-2b"
    graph, model = graph_of(name).clone(), hugging_face(name)
    assert "model.embed_tokens.weight" not in graph.graph.initializers  # the head's, tied to it
    del graph.graph.initializers["model.layers.3.input_layernorm.weight"]
    found = sum(weights_of(graph, model).values())
    assert found == PUBLISHED[name]["parameters"] - 2304


@pytest.mark.full  # else this model is not traced
@pytest.mark.together("google/gemma-2-2b")
def test_an_invalid_graph_shows() -> None:
    proto = without_weights(graph_of("google/gemma-2-2b"))
    proto.graph.node[0].input[0] = "nowhere"
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(proto, full_check=True)


def test_there_are_enough() -> None:
    assert len(_LISTED) >= 30
    assert len({entry["model_type"] for entry in _LISTED}) >= 25
