# SPDX-License-Identifier: Apache-2.0
"""Repeated layers: which are alike, which are traced, and that what a signature cannot show is noticed."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import parity
import pytest
import torch
from accelerate import init_empty_weights
from parity import Array, Steps
from torch import Tensor, nn
from toy_model import VOCAB, Layer, Toy, on_meta, straight, with_weights
from transformers import LlamaConfig

from qeff_zoo.errors import ExportError
from qeff_zoo.export import exporter, folding, layers, loader
from qeff_zoo.export.layers import WatchedIndex, plain
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.graph import external_data
from qeff_zoo.recipe import Recipe, Tiny
from qeff_zoo.registry import find_recipe
from qeff_zoo.tasks.encoders import whole_texts

# --- kinds ---------------------------------------------------------------------------------------


def meta(name: str, **changes: Any) -> Any:
    case = parity.all_cases()[name]
    return loader.load_meta({**case.config, **changes}, case.recipe)


def reduce(model: Any, **more: Any) -> Any:
    run: Any = decoder_tracing.probe if model.can_generate() else whole_texts.run_once
    return layers.reduce(model, lambda: run(model), **more)


KINDS: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "alike": ("llama-base", {"num_hidden_layers": 6}, (0,) * 6, (0, 5)),
    "one": ("llama-base", {"num_hidden_layers": 1}, (0,), (0,)),
    "alternating": (
        "gemma2-base",
        {"num_hidden_layers": 7},
        (0, 1, 0, 1, 0, 1, 0),
        (0, 1, 5, 6),
    ),
    "one in three": (
        "gemma3_text-base",
        {
            "num_hidden_layers": 6,
            "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
        },
        (0, 0, 1, 0, 0, 1),
        (0, 2, 4, 5),
    ),
    "upper windows": ("qwen2-base", {"num_hidden_layers": 6}, (0, 0, 1, 1, 1, 1), (0, 1, 2, 5)),
    "each its own": ("gpt2-inverse_layer_idx", {}, (0, 1, 2, 3), (0, 1, 2, 3)),
    "experts": ("mixtral-base", {}, (0,) * 4, (0, 3)),
    "encoder": ("bert-base", {}, (0,) * 4, (0, 3)),
    "recurrent": ("mamba2-base", {}, (0,) * 4, (0, 3)),
    "computed list": (
        "bamba-base",
        {"num_hidden_layers": 8, "attn_layer_indices": [3, 6]},
        (0, 0, 0, 1, 0, 0, 1, 0),
        (0, 3, 6, 7),
    ),
    "parallel": ("falcon-base", {}, (0,) * 4, (0, 3)),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_and_what_is_traced_of_them(name: str) -> None:
    case, changes, kinds, traced = KINDS[name]
    model = meta(case, **changes)
    repeated, uses = reduce(model)
    assert repeated is not None
    assert (repeated.kinds, repeated.traced) == (kinds, traced)
    assert not uses
    listed = model.get_submodule(repeated.path)
    assert len(listed) == len(kinds)
    computing = tuple(index for index, layer in enumerate(listed) if [*layer.parameters()])
    assert computing == traced


def test_everything_is_kept_on_request() -> None:
    model = meta("llama-base")
    repeated, _ = reduce(model, everything=True)
    assert repeated is not None
    assert (repeated.path, repeated.kinds) == ("model.layers", (0,) * 4)
    assert repeated.traced == (0, 1, 2, 3)
    assert (repeated.read, repeated.apart) == ({3}, set())
    assert len(model.model.layers) == 4
    assert type(model.model.layers[0].self_attn.layer_idx) is int


def test_a_model_without_layers_has_none() -> None:
    model = meta("llama-base")
    model.model.layers = nn.Sequential(*model.model.layers)
    assert reduce(model) == (None, [])


def test_outermost_list_is_found() -> None:
    """Experts may be as many as layers."""
    model = meta("llama-base")
    for layer in model.model.layers:
        layer.experts = nn.ModuleList(nn.Identity() for _ in range(4))
    found = layers.find(model, 4)
    assert found is not None
    assert found[0] == "model.layers"


CHANGES: dict[str, Callable[[Any], None]] = {
    "class": lambda layer: setattr(layer, "mlp", nn.Identity()),
    "shape": lambda layer: vars(layer).update(
        _modules={**layer._modules, "mlp": nn.Linear(64, 64)}
    ),
    "bias": lambda layer: setattr(layer.mlp, "up_proj", nn.Linear(64, 96)),
    "number": lambda layer: setattr(layer.self_attn, "scaling", 0.5),
    "private number": lambda layer: setattr(layer.self_attn, "_scaling", 0.5),
    "list": lambda layer: setattr(layer.self_attn, "windows", [1, 2]),
    "text": lambda layer: setattr(layer.self_attn, "kind", "sliding"),
    "function": lambda layer: setattr(layer.mlp, "end", torch.relu),
    "partial function": lambda layer: setattr(layer.mlp, "end", functools.partial(max, 1)),
    "tensor": lambda layer: setattr(layer, "scale", torch.tensor([1.0, 2.0])),
    "buffer": lambda layer: layer.register_buffer("scale", torch.tensor([1.0, 2.0])),
    "scalar buffer": lambda layer: layer.register_buffer("scale", torch.tensor(2.0)),
    "numpy number": lambda layer: setattr(layer, "scale", np.float32(2)),
    "foreign index": lambda layer: setattr(layer.self_attn, "layer_idx", 0),
    "config": lambda layer: setattr(layer, "config", LlamaConfig(sliding_window=5)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_that_differs_has_a_kind_of_its_own(name: str) -> None:
    model = meta("llama-base", num_hidden_layers=5)
    CHANGES[name](model.model.layers[2])
    repeated, _ = reduce(model)
    assert repeated is not None
    assert repeated.kinds == (0, 0, 1, 0, 0)
    assert repeated.traced == (0, 2, 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (np.float32(1), np.float32(2)),
        (np.array([1]), np.array([2])),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (LlamaConfig(rms_norm_eps=1e-5), LlamaConfig(rms_norm_eps=1e-6)),
        (lambda: 1, lambda: 2),
        ({1, 2}, {1, 3}),
    ],
    ids=["tensor", "number", "array", "partial", "config", "lambda", "set"],
)
def test_values_of_one_class_are_distinguished(one: Any, other: Any) -> None:
    """The first and the last layer are alike, so only the signature can show the one between."""
    model = meta("llama-base", num_hidden_layers=3)
    for layer, value in zip(model.model.layers, (one, other, one), strict=True):
        layer.extra = value
    repeated, _ = reduce(model)
    assert repeated is not None
    assert repeated.kinds in ((0, 1, 0), (0, 1, 2))  # the second traces more than it must


# --- the watched index ---------------------------------------------------------------------------

USES: dict[str, Callable[[Any], Any]] = {
    "index a list": lambda i: [5, 6, 7, 8][i],
    "index a dict": lambda i: {3: 1}[i],
    "range": lambda i: list(range(i)),
    "int": int,
    "float": float,
    "text": str,
    "format": lambda i: f"{i}",
    "format with width": lambda i: f"{i:02d}",
    "percent": lambda i: "%d" % i,  # noqa: UP031
    "in": lambda i: i in (1, 3),
    "in a set": lambda i: i in {1, 3},
    "truth": lambda i: 1 if i else 0,
    "negative": operator.neg,
    "positive": operator.pos,
    "absolute": abs,
    "inverted": operator.invert,
    "equal": lambda i: i == 3,
    "unequal": lambda i: i != 4,
    "less": lambda i: i < 4,
    "at least": lambda i: i >= 1,
    "swapped": lambda i: i < 4,
    "add": lambda i: i + 1,
    "sum": lambda i: 1 + i,
    "subtract": lambda i: 5 - i,
    "times": lambda i: i * 2.5,
    "divide": lambda i: 1 / i,
    "floor": lambda i: i // 2,
    "modulo": lambda i: i % 2,
    "divmod": lambda i: divmod(i, 2),
    "power": lambda i: 2**i,
    "shift": lambda i: 1 << i,
    "shifted": lambda i: i << 1,
    "bits": lambda i: i & 1,
    "round": round,
    "min": lambda i: min(i, 9),
    "tensor": lambda i: torch.full((), float(i)).item(),
    "new tensor": lambda i: torch.tensor(i).item(),
    "tensor product": lambda i: (torch.ones(()) * i).item(),
    "tensor index": lambda i: torch.arange(9)[i].item(),
    "method": lambda i: i.bit_length(),
}


@pytest.mark.parametrize("name", USES)
def test_computing_with_the_index_is_noticed(name: str) -> None:
    uses: list[int] = []
    try:
        result = USES[name](WatchedIndex(3, uses))
    except (TypeError, RuntimeError):
        return  # not like an int, but loud
    assert result == USES[name](3)
    assert uses
    assert set(uses) == {3}


def test_naming_a_state_is_no_use() -> None:
    uses: list[int] = []
    index = WatchedIndex(3, uses)
    assert plain(index) == 3
    assert plain(4) == 4
    assert repr(index) == "3"
    assert not uses


# --- never a wrong graph -------------------------------------------------------------------------

TOY = Recipe(
    model_type="toy",
    architectures=("Toy",),
    task="text-generation",
    special="A toy.",
    shapes=find_recipe("llama").shapes,
    tiny=(Tiny(config={}),),
)
FACTORS = [1.0, 2.0, 1.0]  # the first and the last are alike


def steps_of(graph: ir.Model, weights: dict[str, Tensor], folder: Any) -> Steps:
    for name, value in graph.graph.initializers.items():
        if external_data.is_placeholder(value):
            value.const_value = ir.tensor(weights[name].numpy(), name=name)
    ir.save(graph, folder / "toy.onnx")
    return parity.session_steps(parity.open_session(folder / "toy.onnx"), 2)


def torch_steps(model: Toy) -> Steps:
    probed = decoder_tracing.probe(model)
    step = decoder_tracing.Step(model, probed).eval()

    def call(
        input_ids: Array, position_ids: Array, _: Any, past: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        given = [torch.from_numpy(state) for state in past.values()]
        logits, *present = step(torch.from_numpy(input_ids), torch.from_numpy(position_ids), given)
        return logits.numpy(), {
            name: state.numpy() for name, state in zip(past, present, strict=True)
        }

    return Steps(call, {state.name: parity.garbage((2, 1, parity.CTX_LEN, 8)) for state in probed})


def calls_of(graph: ir.Model) -> list[str]:
    return [node.op_type for node in graph.graph if node.domain == folding.DOMAIN]


def export_toy(make: Callable[[], Toy], monkeypatch: pytest.MonkeyPatch) -> ir.Model:
    monkeypatch.setattr(exporter.loader, "load_meta", lambda config, recipe, **_: on_meta(make))
    return exporter.export_graph({}, TOY)


def assert_right(make: Callable[[], Toy], graph: ir.Model, folder: Any) -> None:
    model = with_weights(make)
    ours = steps_of(graph, model.state_dict(), folder)
    reference = torch_steps(model)
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 9))
    with torch.no_grad():
        for columns in (slice(0, 6), slice(6, 8), slice(8, 9)):
            positions = np.tile(np.arange(9)[columns], (2, 1))
            got = ours.step(ids[:, columns], positions)
            expected = reference.step(ids[:, columns], positions)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


class Finish(Layer):
    """Ends with a function of the layer and its result."""

    def __init__(self, layer_idx: int, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(layer_idx)
        type(self).function = staticmethod(function)

    def finish(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def finishing(
    function: Callable[[Any, Tensor], Tensor],
    prepare: Callable[[Any, int], None] = lambda layer, index: None,
) -> Callable[[], Toy]:
    """Make toys whose layers end so; a class of its own, so that functions do not meet."""
    cls = type("Finishing", (Finish,), {})
    return lambda: Toy(lambda index: cls(index, function), prepare=prepare)


def attribute(name: str, values: list[Any]) -> Callable[[Any, int], None]:
    return lambda layer, index: layer.__dict__.__setitem__(name, values[index])


def own_config(layer: Any, index: int) -> None:
    layer.config = LlamaConfig(rms_norm_eps=FACTORS[index])


def tripled(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output * 3


BY_TEXT = {str(index): factor for index, factor in enumerate(FACTORS)}
DIFFERING: dict[str, Callable[[], Toy]] = {
    "times the index": finishing(lambda layer, x: x * (layer.layer_idx + 1)),
    "from a list": finishing(lambda layer, x: x * FACTORS[layer.layer_idx]),
    "from a dict by name": finishing(lambda layer, x: x * BY_TEXT[f"{layer.layer_idx}"]),
    "branch": finishing(lambda layer, x: x * 2 if layer.layer_idx % 2 else x),
    "number from one": finishing(
        lambda layer, x: x * 2 if layer.layer_number % 2 else x,
        lambda layer, index: setattr(layer, "layer_number", index + 1),
    ),
    "attribute": finishing(lambda layer, x: x * layer.factor, attribute("factor", FACTORS)),
    "private attribute": finishing(
        lambda layer, x: x * layer._factor, attribute("_factor", FACTORS)
    ),
    "tensor": finishing(
        lambda layer, x: x * layer.factor,
        attribute("factor", [torch.tensor(factor) for factor in FACTORS]),
    ),
    "buffer": finishing(
        lambda layer, x: x * layer.factor,
        lambda layer, index: layer.register_buffer(
            "factor", torch.tensor(FACTORS[index]), persistent=False
        ),
    ),
    "partial": finishing(
        lambda layer, x: layer.end(x),
        attribute("end", [functools.partial(torch.mul, other=factor) for factor in FACTORS]),
    ),
    "config": finishing(lambda layer, x: x * layer.config.rms_norm_eps, own_config),
    "lambda": finishing(
        lambda layer, x: layer.end(x),
        attribute("end", [lambda x, factor=factor: x * factor for factor in FACTORS]),
    ),
    "hook": finishing(
        lambda layer, x: x,
        lambda layer, index: index == 1 and layer.project.register_forward_hook(tripled),
    ),
}


@pytest.mark.parametrize("name", DIFFERING)
@pytest.mark.sampled(4)
def test_layers_that_differ_inside_are_not_taken_for_alike(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    make = DIFFERING[name]
    graph = export_toy(make, monkeypatch)
    assert len(calls_of(graph)) == 3
    assert len(set(calls_of(graph))) > 1
    assert_right(make, graph, tmp_path)


def tripled_in_between(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    for index, layer in enumerate(run_layers):
        x = call(layer, x * 3 if index == len(run_layers) - 2 > 0 else x)
    return x


def tripled_at_two(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    for index, layer in enumerate(run_layers):
        x = call(layer, x * 3 if index == 2 else x)
    return x


def scaled_from_outside(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    """Numbers that are given to the layers by their place in the list."""
    for layer, factor in zip(run_layers, FACTORS, strict=False):
        layer.given = factor
        x = call(layer, x)
    return x


def all_but_one(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    return straight(run_layers[:2], x, call)


def backwards(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    return straight(run_layers[::-1], x, call)


def twice(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    return straight(run_layers, straight(run_layers, x, call), call)


def sum_of_all(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    total = torch.zeros_like(x)
    for layer in run_layers:
        x = call(layer, x)
        total = total + x
    return total


def dense(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    results = [x]
    for layer in run_layers:
        results.append(call(layer, sum(results)))
    return results[-1]


def side_by_side(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    return sum(call(layer, x) for layer in run_layers)


def halved_between(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    for layer in run_layers:
        x = call(layer, x) * 0.5
    return x


def before_last(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    before = x
    for layer in run_layers:
        x, before = call(layer, x + before), x
    return x


def start_added(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    start = x
    for layer in run_layers:
        x = call(layer, x + start)
    return x


class Given(Layer):
    """Multiplies by a number that it is given before it is called."""

    given = 1.0

    def finish(self, x: Tensor) -> Tensor:
        return x * self.given


ORDERS = [
    straight,
    tripled_in_between,
    tripled_at_two,
    scaled_from_outside,
    all_but_one,
    backwards,
    twice,
    sum_of_all,
    dense,
    side_by_side,
    halved_between,
    before_last,
    start_added,
]


@pytest.mark.parametrize("run", ORDERS, ids=lambda run: run.__name__)
@pytest.mark.sampled(3)
def test_any_order_of_layers_is_right_or_refused(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def make() -> Toy:
        return Toy(Given, run=run)

    try:
        graph = export_toy(make, monkeypatch)
    except ExportError as error:
        assert "layers" in str(error)  # noqa: PT017
        assert run is not straight
        return
    assert_right(make, graph, tmp_path)


class Pair(Layer):
    """Hands on two results."""

    def forward(self, x: Any, mask: Tensor, past: Any) -> Any:
        x, total = x
        y = super().forward(x, mask, past)
        return y, total + y


def pairs(run_layers: nn.ModuleList, x: Tensor, call: Any) -> Tensor:
    x, total = straight(run_layers, (x, x * 2), call)  # type: ignore[arg-type]
    return x + total


class Lender(Layer):
    """The first layer computes what all the others use, from inputs alone."""

    def forward(self, x: Tensor, mask: Tensor, past: Any) -> Tensor:
        if not hasattr(past, "lent"):
            past.lent = torch.cos(past.get_query_offset().float())[:, :, None]
        return super().forward(x, mask, past) * past.lent


@pytest.mark.parametrize(
    "make",
    [lambda: Toy(Pair, run=pairs), lambda: Toy(Lender), lambda: Toy(count=1), lambda: Toy(count=2)],
    ids=["two results", "lent by the first", "one layer", "two layers"],
)
@pytest.mark.sampled(2)
def test_chains_of_other_forms_are_right(
    make: Callable[[], Toy], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    graph = export_toy(make, monkeypatch)
    assert len(calls_of(graph)) == len(make().layers)
    assert_right(make, graph, tmp_path)


def test_a_shared_layer_is_right_or_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The same module at two places, as ALBERT has it: one set of weights."""

    def make() -> Toy:
        toy = Toy(count=3)
        toy.layers[2].project = toy.layers[0].project
        return toy

    try:
        graph = export_toy(make, monkeypatch)
    except ExportError:
        return
    assert_right(make, graph, tmp_path)


def test_meta_toys_have_no_weights() -> None:
    toy = on_meta(Toy)
    assert all(not any(parameter.stride()) for parameter in toy.parameters())
    with init_empty_weights(include_buffers=False):
        assert nn.Linear(2, 2).weight.is_meta
