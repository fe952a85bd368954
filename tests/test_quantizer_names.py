# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints by the names, and in the forms, that quantizers write: linear layers in place of all else."""

import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_builds import Models
from quantized import quantize
from runnable_package import edit_json
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

import qeff_zoo
from qeff_zoo.checkpoint import open_checkpoint
from qeff_zoo.choices import Request
from qeff_zoo.errors import PlanError
from qeff_zoo.export import loader
from qeff_zoo.plan import NO_WEIGHTS, resolve
from qeff_zoo.validation.reference_loading import load_model
from qeff_zoo.weights.bindings import bind
from qeff_zoo.weights.writing import evaluate

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]
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


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> Path:
    tensors = change(load_file(folder / WEIGHTS))
    (folder / WEIGHTS).unlink()  # a file that is mapped must not change
    save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, folder / WEIGHTS)
    return folder


#: Model type -> what its quantizers make of its tensors, and how these tests quantize them.
KINDS: Mapping[str, tuple[Callable[[Tensors], Tensors], tuple[str, ...]]] = {
    "gpt2": (of_linear_layers, ("gptq", "awq", "bitsandbytes")),
    "mixtral": (mixtral, ("gptq", "compressed-tensors")),
    "phi3": (halves, ("gptq",)),
    "gpt_oss": (alternating, ("compressed-tensors",)),
    "gpt_oss older": (partial(alternating, inside=".experts"), ("compressed-tensors",)),
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
            lambda tensors: {name.replace(".layers.", ".h."): one for name, one in tensors.items()},
        )
        if kind == "gpt2"
        else made
    )


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_weights_are_those_of_transformers_model(
    models: Models, tmp_path: Path, kind: str, how: str
) -> None:
    """Bit for bit those that the reference decodes and transformers loads, and near those that were quantized."""
    source = quantized(models, kind, how, tmp_path)
    checkpoint = open_checkpoint(str(source))
    meta = loader.build_meta(checkpoint.config, TASK)
    bound = bind(meta, checkpoint.logical, linear=checkpoint.encoded)
    assert not bound.unused
    reference = load_model({"checkpoint": str(source)}, TASK, None).state_dict()
    floats = AutoModelForCausalLM.from_pretrained(floats_of(models, kind)).state_dict()
    changed = 0
    for name, made in bound.expressions.items():
        value, wanted = reference[name].numpy(), floats[name].numpy()
        assert np.array_equal(evaluate(made, checkpoint), value), name
        assert np.abs(value - wanted).mean() < 0.3 * np.abs(wanted).mean() + 1e-9, name
        changed += not np.array_equal(value, wanted)
    assert changed > 8


#: What becomes of matrices: kept as they are stored.
WAYS: Mapping[str, dict[str, dict[str, int]]] = {
    "gpt2": {"weights": {"kept": 16}},
    "mixtral": {"experts": {"native": 4}, "weights": {"kept": 24}},
}


@pytest.mark.parametrize("kind", WAYS)
def test_integers_stay_as_they_are_stored(
    models: Models, home: Path, tmp_path: Path, kind: str
) -> None:
    package = qeff_zoo.build(
        quantized(models, kind, "gptq", tmp_path), prefill_seq_len=8, ctx_len=48
    )
    found = package.manifest["programs"][0]["ways"]
    assert {name: found[name] for name in WAYS[kind]} == WAYS[kind]
    assert package.validated == "checkpoint"


def test_experts_that_tools_take_apart_in_two_ways_are_refused(
    models: Models, tmp_path: Path
) -> None:
    """GPTQModel halves what AutoRound takes apart row by row, under the same names and the same method."""
    source = shutil.copytree(models.checkpoint("gpt_oss", "gpt_oss"), tmp_path / "c")
    edit_json(source / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(PlanError, match="quantized with 'gptq', which does not work with its"):
        resolve(open_checkpoint(str(source)), Request(), NO_WEIGHTS)
