# SPDX-License-Identifier: Apache-2.0
"""A farm that is killed before any of its changes leaves nothing half-written, and another run completes it."""

import shutil
from pathlib import Path

import lone_farm
import numpy as np
import pytest
from fixtures_builds import Models
from kills import kill
from publications import assert_listed, assert_whole, folder_files
from safetensors.numpy import load_file, save_file

from qeff_zoo.farm import running, zoo_file
from qeff_zoo.farm.planning import PUBLISHED, plan_farm
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.index_files import decode
from qeff_zoo.package import Package
from qeff_zoo.store import Store

pytest.importorskip("ray")
#: Changes at which a farm is killed by a full run of the tests.
MOST = 40


def farm_of(models: Models, folder: Path) -> Path:
    """Make a folder with two checkpoints of one architecture, whose graph is in its store."""
    for number in range(2):
        copy = shutil.copytree(models.llama, folder / f"tune-{number}")
        tensors = load_file(copy / "model.safetensors")
        name = min(tensors)
        tensors[name] = (tensors[name] * (1 + number / 100)).astype(np.float32)
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    models.trace(models.llama, folder / "home")
    return folder


def packages_of(home: Path) -> list[Package]:
    return [Package.open(path) for path in sorted((home / "packages").glob("qz1-*"))]


def listed_of(files: dict[str, bytes], packages: list[Package]) -> list[Package]:
    """Return the packages that a remote lists."""
    entries = decode(files[INDEX_NAME]).entries if INDEX_NAME in files else ()
    names = {entry.path[-16:] for entry in entries}
    return [package for package in packages if package.build_key[4:20] in names]


@pytest.mark.full
def test_a_farm_killed_at_any_change_is_completed_by_another_run(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = farm_of(models, tmp_path / "before")
    argv = ["farm", "run", "{place}/zoo.toml", "--quiet"]
    monkeypatch.setattr(running, "started", running.started)  # restored at the end
    whole, *killed = kill(argv, before, tmp_path / "runs", most=MOST, prepare="lone_farm")
    expected = {one.build_key for one in packages_of(whole.place / "home")}
    assert len(expected) == 2
    assert len(killed) > 5
    for one in killed:
        home = one.place / "home"
        store = Store(home)
        assert all(problems == [] for problems in store.verify().values()), one
        files = folder_files(one.place / "zoo")
        left = packages_of(home) if (home / "packages").is_dir() else []
        assert_listed(files, *listed_of(files, left))

        monkeypatch.setenv("QEFF_HOME", str(home))
        lone_farm.begin(one.place)
        report = running.run(plan_farm(zoo_file.read(one.place / "zoo.toml")))

        assert [cell.state for cell in report.cells] == [PUBLISHED] * 2, one
        found = packages_of(home)
        assert_whole(folder_files(one.place / "zoo"), *found)
        assert {each.build_key for each in found} == expected
        assert all(each.verify() == [] and each.validated == "checkpoint" for each in found)
        store.gc()
        assert [*(home / "staging").iterdir()] == []
