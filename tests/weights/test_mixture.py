# SPDX-License-Identifier: Apache-2.0
"""Mixtures of int4 and int8 with so many bits a weight: the budget, what is chosen for it, and what is refused."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from fixtures_builds import Models
from safetensors import safe_open
from transformers import AutoModelForCausalLM

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import PlanError
from qeff_zoo.export import importance
from qeff_zoo.graph.numerics import MIXED_BITS, Format, format_of
from qeff_zoo.package import Package, proof
from qeff_zoo.weights import losses
from qeff_zoo.weights.mixture import Mixture, cheapest

FORMATS = [format_of("int4", 32), format_of("int4", 64), format_of("int8", 64)]
BITS = 5.6


def mixed(models: Models, model_type: str = "llama") -> Path:
    """Give a checkpoint whose rows are of whole blocks."""
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    return models.checkpoint(f"mixed-{model_type}", model_type, **sizes)


def bits_in(package: Package) -> float:
    """Count the bits a weight in a package's file, integers with all that belongs to them."""
    matrices = {one.name: one for one in package.programs[0].numerics.matrices}
    values = sum(one.rows * one.columns for one in matrices.values())
    with safe_open(package.path / "weights.safetensors", "np") as file:
        found = [file.get_tensor(name) for name in file.keys() if is_of(name, matrices)]  # noqa: SIM118
    return 8 * sum(one.nbytes for one in found) / values


def is_of(tensor: str, matrices: dict[str, Any]) -> bool:
    """Whether a tensor belongs to matrices, perhaps joined ones."""
    name = tensor.removesuffix(".scales").removesuffix(".zero_points")
    return all(part in matrices for part in name.split("+"))


def formats_in(package: Package) -> dict[str, Format]:
    return {one.name: one.format for one in package.programs[0].numerics.matrices}


def draws() -> Iterator[tuple[list[dict[Format, int]], list[dict[Format, float]]]]:
    """Give sizes and costs of a few groups."""
    chance = np.random.default_rng(0)
    for _ in range(10):
        values = chance.integers(1, 100, 5) * 64
        sizes = [
            {format: int(count * bits) for format, bits in zip(FORMATS, (5, 4.5, 8.5), strict=True)}
            for count in values
        ]
        costs = [dict(zip(FORMATS, chance.random(3) ** 4, strict=True)) for _ in values]
        yield sizes, costs


def test_the_choice_costs_least_and_more_bits_never_cost_more() -> None:
    for sizes, costs in draws():
        least, most = (sum(end(one.values()) for one in sizes) for end in (min, max))
        before = np.inf
        for budget in np.linspace(least, most, 9):
            chosen = cheapest(sizes, costs, budget)
            assert sum(one[format] for one, format in zip(sizes, chosen, strict=True)) <= budget
            cost = sum(one[format] for one, format in zip(costs, chosen, strict=True))
            fits = [
                sum(one[format] for one, format in zip(costs, every, strict=True))
                for every in product(FORMATS, repeat=len(sizes))
                if sum(one[format] for one, format in zip(sizes, every, strict=True)) <= budget
            ]
            assert cost == pytest.approx(min(fits))
            assert cost <= before
            before = cost


@pytest.mark.filterwarnings("ignore:.*Rounding weights costs")
def test_a_mixture_keeps_its_budget_and_agrees_with_hugging_face(
    models: Models, home: Path
) -> None:
    models.trace(mixed(models), home)
    package = qeff_zoo.build(mixed(models), bits=BITS, ctx_len=32, prefill_seq_len=8)
    assert package.validated != "none"
    assert BITS - 0.5 < bits_in(package) <= BITS
    formats = formats_in(package)
    assert {one.bits for one in formats.values()} == {4, 8}
    again = qeff_zoo.build(mixed(models), bits=BITS, ctx_len=64, validate=False)
    assert formats_in(again) == formats
    pinned = qeff_zoo.build(
        mixed(models), bits=BITS, block_size=64, format=["*.q_proj=int8"], validate=False
    )
    assert {one.block for one in formats_in(pinned).values()} == {64}
    assert all(one.bits == 8 for name, one in formats_in(pinned).items() if "q_proj" in name)
    assert bits_in(pinned) <= BITS


def test_experts_of_one_kernel_share_a_format(models: Models, home: Path) -> None:
    package = models.build(mixed(models, "mixtral"), home, bits=BITS)
    formats = formats_in(package)
    assert {one.bits for one in formats.values()} == {4, 8}
    assert {*package.programs[0].ways["experts"]} == {"native"}
    experts = [name for name in formats if "experts" in name]
    for layer in {name.partition("experts")[0] for name in experts}:
        assert len({formats[name] for name in experts if name.startswith(layer)}) == 1


def test_the_matrices_of_an_encoder_are_mixed_by_relative_errors(
    models: Models, home: Path
) -> None:
    package = models.build(mixed(models, "bert"), home, bits=BITS)
    assert {one.bits for one in formats_in(package).values()} == {4, 8}


def test_a_cost_is_what_an_error_changes_the_output_of_a_layer_by(models: Models) -> None:
    folder = mixed(models)
    checkpoint = open_checkpoint(str(folder))
    checkpoint.fetch()
    found = importance.measure(checkpoint, TEXT_GENERATION, None, costs=True)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = importance.inputs_of(checkpoint, model.config, None)
    layer, outputs = model.model.layers[0], []
    layer.register_forward_hook(lambda _, __, made: outputs.append(made))
    torch.manual_seed(0)
    for name in ("mlp.down_proj", "mlp.up_proj", "self_attn.o_proj"):
        weight = layer.get_submodule(name).weight.detach()
        error = torch.randn_like(weight) * weight.std() / 100
        outputs.clear()
        for change in (error, -error):  # undone after the second run
            with torch.no_grad():
                model(**inputs)
            weight += change
        before, after = outputs
        moved = ((after - before).square().sum(-1) / before.square().sum(-1)).mean()
        costs = torch.from_numpy(found.costs[f"model.layers.0.{name}.weight"])
        assert float((error.square() * costs).sum()) == pytest.approx(3 * float(moved), rel=0.4)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"bits": 4.0}, "--bits is 4.0, expected at least 4.5"),
        ({"bits": float("nan")}, "--bits is nan, expected at least 4.5"),
        ({"bits": 9.0}, "--bits is 9.0, expected at most 8.5"),
        ({"bits": 6.0, "weights": "fp32"}, "mixture of int4 and int8, and --weights is 'fp32'"),
        ({"bits": 6.0, "weights": "w8a8"}, "mixture of int4 and int8, and --weights is 'w8a8'"),
        ({"bits": 6.0, "target": "qaic"}, "mixture of int4 and int8, but target 'qaic' takes fp32"),
        ({"bits": 5.0, "block_size": 32}, r"--bits is 5, expected 5\.\d+ to 9: what the matrices"),
        ({"bits": 5.0, "format": "*=int8"}, "--bits is 5, but no matrix becomes int4"),
    ],
)
def test_what_no_mixture_can_be_is_refused(
    models: Models, home: Path, choices: dict[str, Any], message: str
) -> None:
    models.trace(mixed(models), home)
    with pytest.raises(PlanError, match=message):
        qeff_zoo.build(mixed(models), ctx_len=32, validate=False, **choices)


@pytest.mark.parametrize(
    ("model", "results"),
    [("SmolLM2 135M", "rounding_compare"), ("Gemma 3 270M", "rounding_gemma")],
)
def test_losses_of_real_models_are_those_of_the_benchmark(model: str, results: str) -> None:
    file = ROOT / "benchmarks" / "results" / f"{results}.json"
    rows = json.loads(file.read_bytes())["rows"]
    ours = ("int4", "int8", "bits-")
    measured = {
        round(one["bits"], 2): round(one["kl"], 3)
        for name, one in rows.items()
        if name.startswith(ours)
    }
    assert losses.MEASURED[model] == measured


def test_int4_is_a_mixture_of_the_bits_that_it_can_have(models: Models, home: Path) -> None:
    folder = mixed(models)
    models.trace(folder, home)
    usual = qeff_zoo.build(folder, weights="int4", ctx_len=32, validate=False)
    assert MIXED_BITS - 0.5 < bits_in(usual) <= MIXED_BITS
    assert {one.bits for one in formats_in(usual).values()} == {4, 8}
    least = qeff_zoo.build(folder, weights="int4", block_size=32, ctx_len=32, validate=False)
    assert {one.block for one in formats_in(least).values()} == {32}
    alone = qeff_zoo.build(folder, weights="int4", format=["*=int4"], ctx_len=32, validate=False)
    assert {*formats_in(alone).values()} == {format_of("int4")}


def test_a_costly_mixture_names_matrices_and_what_more_bits_would_cost() -> None:
    found = Mixture(costly={"a.weight": 0.25}, more={6.5: 0.4})
    text = "a.weight (25% of the cost), --bits 6.5 costs 0.4 times this"
    assert found.advice == text
    cost = {"metric": "kl_divergence", "mean": 0.2, "error": 0.01, "positions": 9}
    (warning,) = proof.warnings({"weights": cost}, "llama", found.advice)
    assert text in warning
