# SPDX-License-Identifier: Apache-2.0
"""Every tensor that a package stores is compared with the checkpoint's, in every format, and no damage passes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from fixtures_builds import Models
from gguf_files import write as write_gguf
from quantized import quantize
from runnable_package import edit_json

import qeff_zoo
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.graph.external_data import WEIGHTS
from qeff_zoo.package import Package
from qeff_zoo.pipeline.checks import tiny_package
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation import ladder
from qeff_zoo.validation.content import settings, stored_weights
from qeff_zoo.validation.reference import settings as reference_settings
from qeff_zoo.validation.reference import stored_weights as reference
from qeff_zoo.validation.reference.loading import load_model, load_unloaded
from qeff_zoo.validation.trial.package_runner import settings_read_by

pytestmark = pytest.mark.filterwarnings("ignore:.* stores matrices in ")

#: Ways to store a Llama -> the kinds of tensors in its package.
WAYS: dict[str, set[str]] = {
    "fp32": {"F32"},
    "int8": {"F32", "U8", "scales"},
    "int4": {"F32", "U8", "scales", "zero_points"},
    "w8a8": {"F32", "I8", "scales", "zero_points"},
    "awq": {"F32", "U8", "scales", "zero_points"},
    "gptq-ordered": {"F32", "U8", "scales", "zero_points", "order"},
    "compressed-tensors": {"F32", "U8", "scales"},
    "fp8": {"F32", "U8", "scales"},
    "Q4_1": {"F32", "U8", "scales", "offsets"},
    "Q8_0": {"F32", "U8", "scales"},
    "Q5_K": {"F32", "U8", "I8", "scales", "offsets"},
    "Q6_K": {"F32", "U8", "I8", "scales"},
}
_WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


def located(package: Package, checkpoint: Path) -> dict[str, Any]:
    """Return a request to the reference."""
    if checkpoint.suffix == ".gguf":
        config = str(package.path / "config.json")
        opened = open_checkpoint(str(checkpoint), config_from=config)
        opened.fetch()
        return opened.located
    return {"checkpoint": str(checkpoint)}


def compared(package: Package, checkpoint: Path, model: Any = None) -> dict[str, Any]:
    request = {
        **located(package, checkpoint),
        "numerics": ladder.rounding_of(package).as_dict(),
        **stored_weights.request_of(package),
    }
    found = reference.answer(request, model or load_model(request, package.task, None), None)
    assert found
    return found


def is_right(found: dict[str, Any]) -> bool:
    (check,) = stored_weights.judge(found, "tiny", {"dtype": "weights"})
    assert ("canary" in check) == (found["zeroed"] > 1)
    return bool(check["passed"])


def header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def damaged(package: Package, folder: Path, name: str, change: Callable[[Any], Any]) -> Package:
    """Copy a package, and change a tensor of its weight file."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(package.path, folder)
    path = folder / WEIGHTS
    path.chmod(0o644)
    entries, data = header(path)
    entry = entries[name]
    dtype = {"F32": "<f4", "F16": "<f2", "U8": "u1", "I8": "i1", "I32": "<i4"}[entry["dtype"]]
    start, stop = (data + at for at in entry["data_offsets"])
    content = bytearray(path.read_bytes())
    array = np.frombuffer(content[start:stop], dtype).reshape(entry["shape"]).copy()
    content[start:stop] = change(array).astype(dtype).tobytes()
    path.write_bytes(content)
    return Package(folder, package.manifest)


def _first(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(array: Any) -> Any:
        array.flat[0] = change(array.flat[0])
        return array

    return changed


def _swapped(array: Any) -> Any:
    array[[0, 1]] = array[[1, 0]]
    return array


#: The least damage to a tensor of each kind.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "F32": _first(lambda value: np.nextafter(value, np.float32(9))),
    "U8": _first(lambda value: value ^ 2),
    "I8": _first(lambda value: value ^ 2),
    "scales": _first(lambda value: value * np.float32(1.02)),
    "zero_points": _first(lambda value: value ^ 1),
    "offsets": _first(lambda value: value * np.float32(1.002)),
    "order": _swapped,
}


def kind_of(name: str, entry: dict[str, Any]) -> str:
    last, dtype = name.rpartition(".")[2].removeprefix("super_"), str(entry["dtype"])
    is_number = dtype == "I8" and last != "zero_points"  # a scale, times that of a super-block
    return last if last in CHANGES and not is_number else dtype


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(3)
def test_no_damage_to_a_stored_tensor_passes(
    models: Models, home: Path, tmp_path: Path, way: str
) -> None:
    floats = models.checkpoint("wide", "llama", **_WIDE) if way.endswith("_K") else models.llama
    models.trace(floats, home)
    source, choices = floats, {}
    if way in ("fp32", "int8", "int4", "w8a8"):
        choices = {"weights": way}
    elif way.startswith("Q"):
        source = write_gguf(tmp_path / "m.gguf", floats, {"weight": way})
        choices = {"config_from": floats}
    else:
        source = quantize(models.llama, tmp_path / "c", way)
    package = qeff_zoo.build(source, validate=False, ctx_len=64, **choices)
    model = load_model(located(package, source), package.task, None)
    found = compared(package, source, model)
    assert is_right(found)
    assert found["left_count"] == 0
    entries, _ = header(package.path / WEIGHTS)
    by_kind: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if not name.startswith("__pad."):
            by_kind.setdefault(kind_of(name, entry), []).append(name)
    assert {*by_kind} == WAYS[way]
    exact = source == models.llama
    for kind, names in by_kind.items():
        change = CHANGES[kind]
        if kind == "F32" and not exact:
            change = _first(lambda value: value * np.float32(1.0001) + np.float32(1e-4))
        if kind == "zero_points" and way == "w8a8":
            names = [one for one in names if entries[one]["dtype"] == "I8"]
        for name in (names[0], names[-1]):
            wrong = damaged(package, tmp_path / "wrong", name, change)
            found = compared(wrong, source, model)
            assert not is_right(found), name
            assert found["worst"] in name


def test_rows_that_no_text_reaches_are_noticed(models: Models, home: Path, tmp_path: Path) -> None:
    package = models.build(models.tied, home, weights="int8", ctx_len=40)
    entries, _ = header(package.path / WEIGHTS)
    tables = [name for name, one in entries.items() if one["shape"][0] == 257 and "scales" in name]

    def zeroed(array: Any) -> Any:
        array[201:217] = 0
        return array

    for name in tables:
        wrong = damaged(package, tmp_path / "wrong", name, zeroed)
        (check,) = stored_weights.judge(compared(wrong, models.tied), "tiny", {"dtype": ""})
        assert not check["passed"]
        assert "has other values than the checkpoint" in check["note"]
    assert tables


def test_a_graph_that_reads_another_tensor_is_noticed(
    models: Models, home: Path, tmp_path: Path
) -> None:
    package = models.build(models.llama, home, ctx_len=40)
    folder = shutil.copytree(package.path, tmp_path / "wrong")
    path = folder / package.programs[0].path
    model = ir.load(path)
    one, other = (
        model.graph.initializers[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (1, 2)
    )
    for value, source in ((one, other.const_value), (other, one.const_value)):
        assert isinstance(source, ir.ExternalTensor)
        value.const_value = ir.ExternalTensor(
            source.location,
            source.offset,
            source.length,
            source.dtype,
            shape=source.shape,
            name=value.name or "",
        )
    path.unlink()
    ir.save(model, path)
    found = compared(Package(folder, package.manifest), models.llama)
    assert not is_right(found)
    assert "up_proj" in found["worst"]
    assert is_right(compared(package, models.llama))


def test_a_model_without_weights_is_compared_part_by_part(models: Models, home: Path) -> None:
    package = models.build(models.tied, home, weights="int8", ctx_len=40)
    whole = compared(package, models.tied)
    request = {
        "checkpoint": str(models.tied),
        "numerics": ladder.rounding_of(package).as_dict(),
        **stored_weights.request_of(package),
    }
    unloaded = load_unloaded(request, package.task, None)
    assert reference.answer(request, unloaded.model, unloaded) == whole


def test_stored_tensor_without_a_parameter_is_reported(models: Models, home: Path) -> None:
    package = models.build(models.llama, home, ctx_len=40)
    request = {
        "checkpoint": str(models.llama),
        "numerics": ladder.rounding_of(package).as_dict(),
        **stored_weights.request_of(package),
    }
    model = load_model(request, package.task, None)
    model.model.norm = torch.nn.Identity()
    found = reference.answer(request, model, None)
    assert found
    assert found["left"] == {"model.norm.weight": "the model has no parameter of this name"}
    assert stored_weights.reported(found) == {"weights_not_compared": found["left"]}
    (check,) = stored_weights.judge(found, "tiny", {"dtype": ""})
    assert check["note"].endswith("1 not compared: 'model.norm.weight'")


def test_stacks_of_experts_are_compared(models: Models, home: Path, tmp_path: Path) -> None:
    floats = models.checkpoint("mixtral", "mixtral")
    models.trace(floats, home)
    source = quantize(floats, tmp_path / "c", "compressed-tensors")  # one kernel takes its experts
    package = qeff_zoo.build(source, validate=False, ctx_len=64)
    model = load_model({"checkpoint": str(source)}, package.task, None)
    assert is_right(compared(package, source, model))
    name = "model.layers.3.mlp.experts.gate_up_proj"
    for entry, change in ((name, CHANGES["U8"]), (f"{name}.scales", _swapped)):
        found = compared(damaged(package, tmp_path / "wrong", entry, change), source, model)
        assert not is_right(found)
        assert found["worst"] == name


def test_a_check_that_compares_nothing_fails() -> None:
    nothing = {**reference.WeightComparison().as_dict(), "tensors": 0}
    (check,) = stored_weights.judge(nothing, "tiny", {"dtype": ""})
    assert not check["passed"]
    assert stored_weights.judge(None, "tiny", {}) == []


#: Models whose parameters are moved, joined, stacked or taken apart.
MOVED = ("gpt2", "gpt_oss", "mixtral", "falcon", "mamba", "jamba", "whisper", "t5", "phi3", "swin")


@pytest.mark.filterwarnings("ignore:.* sets no max_length")  # of a tiny Whisper
@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("model_type", MOVED)
@pytest.mark.sampled(10)
def test_moved_parameters_are_recognized(tmp_path: Path, model_type: str, weights: str) -> None:
    recipe = find_recipe(model_type)
    package, checkpoint = tiny_package(recipe, recipe.tiny[0], tmp_path, weights=weights)
    found = compared(package, checkpoint)
    assert is_right(found)
    assert found["left_count"] == 0


# --- settings -----------------------------------------------------------------------------------------


def _checked(package: Package, checkpoint: Path, read: dict[str, Any]) -> dict[str, bool]:
    request = {"checkpoint": str(checkpoint), "task": package.task}
    answer = reference_settings.answer(request, load_model(request, package.task, None))
    checks = settings.judge(package, read, answer, "tiny", "5")
    assert all(check["canary"]["failed"] for check in checks)
    return {check["metric"]: check["passed"] for check in checks}


def test_settings_of_a_checkpoint_are_those_of_its_package(
    models: Models, home: Path, tmp_path: Path
) -> None:
    package = models.build(models.llama, home, ctx_len=40)
    right = {"same_settings": True, "same_end_tokens": True}
    session = qeff_zoo.load(package)
    read = settings_read_by(session)
    assert read == {"ends": [1]} or read["ends"]
    assert _checked(package, models.llama, read) == right
    folder = shutil.copytree(package.path, tmp_path / "wrong")
    (folder / "generation_config.json").chmod(0o644)
    (folder / "generation_config.json").unlink()
    wrong = Package(folder, package.manifest)
    assert _checked(wrong, models.llama, read) == {**right, "same_settings": False}
    ends = {"ends": [*read["ends"], 5]}
    assert _checked(package, models.llama, ends) == {**right, "same_end_tokens": False}


def test_labels_and_prompts_are_compared(models: Models, tmp_path: Path) -> None:
    checkpoint = models.checkpoint("labels", "bert", task="text-classification")
    folder = shutil.copytree(checkpoint, tmp_path / "package")
    manifest = {"task": "text-classification", "spec": {"sources": {"model": {}}}, "files": []}
    package = Package(folder, manifest)
    names = [
        *json.loads((folder / "config.json").read_bytes())
        .get("id2label", {0: "LABEL_0", 1: "LABEL_1"})
        .values()
    ]
    right = {"same_settings": True, "same_labels": True}
    assert _checked(package, checkpoint, {"labels": names}) == right
    exchanged = {"labels": names[::-1]}
    assert _checked(package, checkpoint, exchanged) == {**right, "same_labels": False}
    own = shutil.copytree(checkpoint, tmp_path / "source")
    (own / "modules.json").write_text("[]")  # a list
    prompts = {"prompts": {"query": "Query: "}, "default_prompt_name": "query"}
    edit_json(own / "config_sentence_transformers.json", **prompts)
    assert _checked(package, own, {"labels": names}) == {**right, "same_settings": False}
    shutil.copy(own / "config_sentence_transformers.json", folder)
    shutil.copy(own / "modules.json", folder)
    assert _checked(package, own, {"labels": names}) == right
    request = {"checkpoint": str(own), "task": package.task}
    answer = reference_settings.answer(request, load_model(request, package.task, None))
    shown = settings.reported({"labels": names}, answer)["settings"]
    assert shown == {"labels": names, **prompts}
