# SPDX-License-Identifier: Apache-2.0
"""Validation notices plausible faults of a quantized package, however slight, and refuses no right one."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runnable_package
import selection
from checkout import ROOT
from safetensors.torch import load_file, save_file

from qeff_zoo.package import Package

pytestmark = pytest.mark.turns(3)

#: Model -> the least number of its faults of each kind.
AT_LEAST = {
    "gemma3_text": {"graph": 42, "calls": 9, "weights": 4, "text": 18},
    "mixtral": {"graph": 25, "calls": 9, "weights": 6, "text": 18},
}
SCRIPTS = ROOT / "scripts"
SHAPE: dict[str, Any] = {"full_batch_size": 6, "prefill_seq_len": 8, "ctx_len": 48}
_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"


@pytest.fixture(scope="module")
def package_faults() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield importlib.import_module("package_faults")


@pytest.fixture
def made(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Package, Path]:
    """Build a package of weights in several files, with a tokenizer and a chat template that writes tools."""
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    folder = runnable_package.checkpoint(tmp_path / "checkpoint", request.param)
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + _TOOLS)
    split(folder)
    return runnable_package.package(folder, weights="int8", **SHAPE), folder


def split(folder: Path) -> None:
    """Split the weights of a checkpoint into two files; the second one has the tensors of the last layer."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    layers = {
        int(name.split(".layers.")[1].split(".")[0]) for name in tensors if ".layers." in name
    }
    second = {name for name in tensors if f".layers.{max(layers)}." in name}
    files = {
        f"model-0000{number}-of-00002.safetensors": {
            name: tensor for name, tensor in tensors.items() if (name in second) == (number == 2)
        }
        for number in (1, 2)
    }
    for name, part in files.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    places = {name: file for file, part in files.items() for name in part}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("made", AT_LEAST, indirect=True)
def test_every_fault_can_be_applied_and_changes_something(
    made: tuple[Package, Path], package_faults: Any, request: pytest.FixtureRequest
) -> None:
    package, _ = made
    found = package_faults.faults_of(package)
    assert len({fault.words for fault in found}) == len(found)
    counts = {
        kind: sum(one.kind == kind for one in found)
        for kind in ("graph", "calls", "weights", "text")
    }
    model = json.loads((package.path / "config.json").read_bytes())["model_type"]
    assert all(counts[kind] >= least for kind, least in AT_LEAST[model].items()), counts
    for fault in found:
        with fault.applied() as (wrong, changes):
            if fault.kind == "calls":
                stages = ["padded_batch", "decode", "every_slot"]
                package_faults.try_package(wrong, 1, package_faults.silent, stages=stages)
            assert changes() > 0, fault.words


@pytest.mark.parametrize("made", ["gemma3_text"], indirect=True)
def test_every_fault_is_noticed(made: tuple[Package, Path], package_faults: Any) -> None:
    package, checkpoint = made
    trials = package_faults.Trials(package, checkpoint)
    right = trials.right()
    assert not right.noticed
    assert right.times < 1 / 4
    faults = package_faults.faults_of(package)
    share = 1 if selection.EVERY else selection.TENTH
    slow = [fault.words for fault in faults if fault.kind in ("graph", "calls")]
    drawn = selection.sample(dict.fromkeys(slow, ()), share)
    tried = [fault for fault in faults if fault.words in drawn or fault.kind in ("weights", "text")]
    found = [trials.result(one) for one in tried]
    assert [one.fault for one in found if not one.noticed] == []
    assert all(one.by for one in found)


@pytest.mark.parametrize("made", ["gemma3_text"], indirect=True)
def test_a_fault_without_effect_is_none(made: tuple[Package, Path], package_faults: Any) -> None:
    package, _ = made
    harmless = package_faults.Fault(
        words="nothing",
        kind="text",
        applied=lambda: package_faults.damaged(package, lambda folder: None),
    )
    trials = object.__new__(package_faults.Trials)
    trials.judge = lambda kind: lambda wrong: []
    with pytest.raises(ValueError, match="'nothing' changes nothing"):
        trials.result(harmless)
