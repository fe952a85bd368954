# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints by the names, and in the forms, that quantizers write: linear layers in place of all else."""

import re
import runpy
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from checkout import TESTS
from fixtures_builds import Models
from quantized import quantize, stored
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

import qeff_zoo
from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.export import loader
from qeff_zoo.validation.reference.formats import open_weights
from qeff_zoo.validation.reference.loading import load_model
from qeff_zoo.weights.bindings import bind
from qeff_zoo.weights.writing import evaluate

pytestmark = pytest.mark.turns(2)

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]
#: Whole tiny checkpoints of the quantizers themselves; `make.py` there says how.
QUANTIZERS = TESTS / "fixtures" / "quantizers"
GENUINE = sorted(path.parent.name for path in QUANTIZERS.glob("*/config.json"))
TASK, WEIGHTS = "text-generation", "model.safetensors"


def of_linear_layers(tensors: Tensors) -> dict[str, Array]:
    """Name GPT-2's matrices as those of layers, (out, in), as `quantize` takes them."""
    turned = re.compile(r"(c_attn|c_proj|c_fc)\.weight$")
    return {
        name.replace(".h.", ".layers."): value.T if turned.search(name) else value
        for name, value in tensors.items()
    }


def mixtral(tensors: Tensors) -> dict[str, Array]:
    names = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    return {
        re.sub(r"\.(w\d)\.", lambda found: f".{names[found[1]]}.", name).replace(
            "block_sparse_moe", "mlp"
        ): value
        for name, value in tensors.items()
    }


def halves(tensors: Tensors) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, value in tensors.items():
        if "gate_up_proj" in name:
            for half, part in zip(("gate", "up"), np.split(value, 2), strict=True):
                found[name.replace("gate_up", half)] = part
        else:
            found[name] = value
    return found


def alternating(tensors: Tensors, inside: str = "") -> dict[str, Array]:
    """Take experts apart whose gates and ups alternate, and whose matrices are (experts, in, out)."""
    found: dict[str, Array] = {}
    for name, value in tensors.items():
        path, _, last = name.rpartition(".")
        if not path.endswith(".experts"):
            found[name] = value
            continue
        layer, bias = last.removesuffix("_bias"), last.endswith("_bias")
        parts = {layer: value}
        if layer == "gate_up_proj":
            parts = {"gate_proj": value[..., 0::2], "up_proj": value[..., 1::2]}
        for part, stacked in parts.items():
            for number, one in enumerate(stacked):
                end = f"{path}{inside}.{number}.{part}"
                found[f"{end}.bias" if bias else f"{end}.weight"] = one if bias else one.T
    return found


def listed(tensors: Tensors, layer: str) -> dict[str, Array]:
    """Take experts apart as GPTQModel did until version 6: a list of layers for each of their matrices."""
    found: dict[str, Array] = {}
    for name, value in tensors.items():
        path, _, last = name.rpartition(".")
        if not path.endswith(".experts"):
            found[name] = value
            continue
        short, bias = re.sub("_proj(_bias)?", "", last), last.endswith("_bias")
        for number, one in enumerate(value):
            end = f"{path}.{layer.format(short, number)}"
            found[f"{end}.bias" if bias else f"{end}.weight"] = one if bias else one.T
    return found


def containers(tensors: Tensors) -> dict[str, Array]:
    """Take experts apart as Defuser does where a module has one matrix of each."""
    found: dict[str, Array] = {}
    for name, value in tensors.items():
        if value.ndim == 3:
            path = name.rpartition(".")[0]
            found |= {f"{path}.{at}.linear.weight": one for at, one in enumerate(value)}
        else:
            found[name] = value
    return found


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> Path:
    tensors = change(load_file(folder / WEIGHTS))
    (folder / WEIGHTS).unlink()  # a file that is mapped must not change
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / WEIGHTS
    )
    return folder


#: Model type -> what its quantizers make of its tensors, and how these tests quantize them.
KINDS: Mapping[str, tuple[Callable[[Tensors], Tensors], tuple[str, ...]]] = {
    "gpt2": (of_linear_layers, ("gptq", "awq", "bitsandbytes")),
    "mixtral": (mixtral, ("gptq", "compressed-tensors")),
    "phi3": (halves, ("gptq",)),
    "gpt_oss": (alternating, ("compressed-tensors",)),
    "gpt_oss older": (partial(alternating, inside=".experts"), ("compressed-tensors",)),
    "gpt_oss listed": (partial(listed, layer="{}.{}"), ("gptq",)),
    "gpt_oss listed first": (partial(listed, layer="{}_projs.{}"), ("gptq",)),
    "jetmoe": (containers, ("bitsandbytes",)),
}
CASES = [(kind, how) for kind, (_, ways) in KINDS.items() for how in ways]


def floats_of(models: Models, kind: str) -> Path:
    model_type = kind.split()[0]
    return models.checkpoint(model_type, model_type)


def quantized(models: Models, kind: str, how: str, folder: Path) -> Path:
    source = shutil.copytree(floats_of(models, kind), folder / "floats")
    rewrite(source, KINDS[kind][0])
    made = quantize(source, folder / how, how, plain=("ln_1", "ln_2"))
    return (
        rewrite(
            made,
            lambda tensors: {
                name.replace(".layers.", ".h."): tensor for name, tensor in tensors.items()
            },
        )
        if kind == "gpt2"
        else made
    )


def assert_bound_as_loaded(source: Path, floats: Mapping[str, Any]) -> None:
    """Check that weights are bit for bit what the reference loads, and near those that were quantized.

    Args:
        source: A quantized checkpoint.
        floats: The state_dict before.
    """
    checkpoint = open_checkpoint(str(source))
    meta = loader.build_meta(checkpoint.config, TASK)
    halved = formats.halves_experts(checkpoint.quantization)
    bound = bind(meta, checkpoint.logical, linear=checkpoint.encoded, halved=halved)
    assert not bound.unused
    reference = load_model({"checkpoint": str(source)}, TASK, None).state_dict()
    changed = 0
    for name, made in bound.expressions.items():
        value, wanted = reference[name].numpy(), floats[name].numpy()
        assert np.array_equal(evaluate(made, checkpoint), value), name
        assert np.abs(value - wanted).mean() < 0.3 * np.abs(wanted).mean() + 1e-9, name
        changed += not np.array_equal(value, wanted)
    assert changed > 3


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_weights_are_those_of_transformers_model(
    models: Models, tmp_path: Path, kind: str, how: str
) -> None:
    floats = AutoModelForCausalLM.from_pretrained(floats_of(models, kind)).state_dict()
    assert_bound_as_loaded(quantized(models, kind, how, tmp_path), floats)


@pytest.mark.parametrize("name", GENUINE)
def test_checkpoints_of_quantizers_have_the_weights_that_were_quantized(name: str) -> None:
    made = runpy.run_path(str(QUANTIZERS / "make.py"))
    assert_bound_as_loaded(QUANTIZERS / name, made["floats"](name.split("-")[1]).state_dict())


#: What becomes of matrices: kept as they are stored.
WAYS: Mapping[str, dict[str, dict[str, int]]] = {
    "gptqmodel-gpt2": {"weights": {"kept": 4}},
    "gptqmodel-mixtral": {"experts": {"native": 1}, "weights": {"kept": 6}},
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.sampled(2)
def test_integers_stay_as_they_are_stored(home: Path, name: str) -> None:
    package = qeff_zoo.build(QUANTIZERS / name, prefill_seq_len=8, ctx_len=32)
    found = package.manifest["programs"][0]["ways"]
    assert {part: found[part] for part in WAYS[name]} == WAYS[name]
    assert package.validated == "checkpoint"


def test_mxfp8_is_what_transformers_decodes(tmp_path: Path) -> None:
    """8-bit floats with an exponent, saved as an octet, for 32 columns of a row."""
    random = np.random.default_rng(0)
    floats = random.standard_normal((24, 96)).astype(ml_dtypes.float8_e4m3fn)
    powers = random.integers(120, 130, (24, 3)).astype(np.uint8)
    name = "m.weight"
    tensors = {name: floats, f"{name}_scale_inv": powers}
    official = Fp8Dequantize.__new__(Fp8Dequantize)
    weight = torch.from_numpy(floats.view(np.uint8)).view(torch.float8_e4m3fn)
    wanted = official._dequantize_one(weight, torch.from_numpy(powers), torch.float32).numpy()
    for sizes in ({}, {"weight_block_size": [1, 32]}):
        config = {"quant_method": "mxfp8", **sizes}
        held = stored(tmp_path, config, tensors)
        encoded = formats.find(held).encoded[name]
        assert np.array_equal(encoded.values(held.read, 0, 24), wanted)
        reference = open_weights(tmp_path, config).tensors[name][...].numpy()
        assert np.array_equal(reference, wanted)


def test_graphs_of_two_quantizers_are_two(home: Path) -> None:
    """GPTQModel halves what AutoRound takes apart row by row, under the same names."""
    for tool in ("gptqmodel", "autoround"):
        qeff_zoo.build(
            QUANTIZERS / f"{tool}-gpt_oss", prefill_seq_len=8, ctx_len=32, validate=False
        )
    assert len([*home.glob("graphs/*")]) == 2
