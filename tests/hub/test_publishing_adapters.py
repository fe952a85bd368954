# SPDX-License-Identifier: Apache-2.0
"""Adapters on the Hub: published with a card that names their model, and resolved to a package that takes them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_hub import LocalHub
from package_builder import SPEC
from safetensors.numpy import save_file

from qeff_zoo.checkpoint.adapters.merged import open_merged
from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
from qeff_zoo.cli import main
from qeff_zoo.errors import AdapterError, CheckpointError, PublishError, ResolutionError
from qeff_zoo.hub.publish.adapter import publish_adapter
from qeff_zoo.hub.resolve import resolve
from qeff_zoo.package import Package
from qeff_zoo.store import Store

REPO = "acme/sql-lora"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Give an adapter of `org/tiny`, of rank 4 on one layer, with a card as peft writes it."""
    folder = tmp_path / "sql"
    folder.mkdir()
    path = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {"A": (4, 8), "B": (8, 4)}
    tensors = {
        f"{path}.lora_{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    write(folder, base_model_name_or_path="org/tiny")
    front = "base_model: /home/somebody/tiny\nlicense: mit\ntags:\n- base_model:adapter:/home/somebody/tiny"
    (folder / "README.md").write_text(f"---\n{front}\n---\n\n# What it is for\n")
    return folder


def write(folder: Path, **facts: Any) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **facts}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_an_adapter_is_published_as_one_of_its_model(
    adapter: Path, alice: LocalHub, capsys: Any
) -> None:
    assert main(["publish", str(adapter), REPO, "--dry-run"]) == 0
    assert 'base_model_relation: "adapter"' in capsys.readouterr().out
    assert not alice.models
    assert main(["publish", str(adapter), REPO]) == 0
    assert capsys.readouterr().out.startswith(f"{alice.endpoint}/{REPO}/commit/")
    files = alice.files(REPO)
    card = files["README.md"].decode()
    assert card == (
        '---\nbase_model: "org/tiny"\nbase_model_relation: "adapter"\nlibrary_name: "peft"\nlicense: mit\ntags:\n'
        "- base_model:adapter:org/tiny\n- lora\n- qeff-zoo\n---\n\n# What it is for\n"
    )
    assert open_adapter(REPO).digest == open_adapter(adapter).digest
    again = publish_adapter(str(adapter), REPO)
    assert alice.files(REPO)["README.md"].decode() == card
    assert "/commit/" in again


def test_an_adapter_resolves_to_a_package_that_takes_it(
    adapter: Path,
    alice: LocalHub,
    make_package: Callable[..., Package],
    home: Path,
    capsys: Any,
) -> None:
    """One with a slot, of its rank or a larger one, that lets its layers change."""
    publish_adapter(str(adapter), REPO)
    store, found = Store(), {}
    slots: dict[str, dict[str, Any]] = {
        "none": {},
        "small": {"max_loras": 2, "max_lora_rank": 2},
        "elsewhere": {"max_loras": 2, "max_lora_rank": 16, "lora_targets": ["v_proj"]},
        "right": {"max_loras": 2, "max_lora_rank": 16, "lora_targets": ["q_proj", "v_proj"]},
    }
    for name, task in slots.items():
        package = make_package(spec={**SPEC, "task": {"name": "text-generation", **task}})
        with store.stage("test") as folder:
            shutil.copytree(package.path, folder, dirs_exist_ok=True)
            store.promote(folder, package.build_key)
        found[package.build_key[4:20]] = name
    resolution = resolve(REPO, adapters=True)
    assert resolution.chosen is not None
    assert found[resolution.chosen.entry.key16] == "right"
    refused = {
        found[candidate.entry.key16]: candidate.difference
        for candidate in resolution.candidates
        if candidate.refused
    }
    assert refused == {
        "none": "max_loras does not apply to it, asked for at least 1; max_lora_rank does not apply to it, asked "
        "for at least 4",
        "small": "max_lora_rank is 2, asked for at least 4",
        "elsewhere": "lora_targets is v_proj, asked for q_proj",
    }
    for named in (REPO, str(adapter)):
        assert main(["resolve", named]) in (0, 11)
        assert (
            f"{named} is an adapter of org/tiny: load it into this package."
            in capsys.readouterr().out
        )
    assert resolve("org/tiny").model == "org/tiny"


def test_adapters_that_are_not_published(adapter: Path, alice: LocalHub) -> None:
    with pytest.raises(PublishError, match="to 'file:///tmp/zoo'; expected a Hub repository"):
        publish_adapter(str(adapter), "file:///tmp/zoo")
    for base in ("/home/somebody/tiny", ""):
        write(adapter, base_model_name_or_path=base)
        with pytest.raises(PublishError, match="expected a model of the Hub, org/name"):
            publish_adapter(str(adapter), REPO)
        with pytest.raises(ResolutionError, match="which is no model of the Hub"):
            resolve(str(adapter), adapters=True)
    (adapter / "adapter_model.safetensors").write_bytes(b"not one")
    with pytest.raises(CheckpointError, match="sql"):
        publish_adapter(str(adapter), REPO)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(AdapterError, match=r"has no adapter_model\.safetensors"):
        publish_adapter(str(adapter), REPO)
    assert not alice.models


def test_an_adapter_may_lie_in_a_folder_of_a_repository(adapter: Path, hub: LocalHub) -> None:
    names = ("adapter_config.json", "adapter_model.safetensors")
    files = {f"vision-lora/{name}": (adapter / name).read_bytes() for name in names}
    revision = hub.commit("org/tiny", {"config.json": b"{}", **files})
    found = open_adapter("org/tiny/vision-lora")
    assert (found.repository, found.revision) == ("org/tiny/vision-lora", revision)
    assert found.digest == open_adapter(adapter).digest
    (merged,) = open_merged([f"org/tiny/vision-lora@{revision}=0.5"])
    assert (merged.weight, merged.source["model_id"]) == (0.5, "org/tiny/vision-lora")
    with pytest.raises(AdapterError, match=r"has no speech-lora/adapter_config\.json"):
        open_adapter("org/tiny/speech-lora")
