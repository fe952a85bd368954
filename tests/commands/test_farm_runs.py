# SPDX-License-Identifier: Apache-2.0
"""Farms on a real Ray: a cluster of two nodes on this machine, one core each."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fixtures_builds import Models
from local_hub import LocalHub
from publications import assert_whole, folder_files, titles
from safetensors.numpy import load_file, save_file

from qeff_zoo.errors import FarmError
from qeff_zoo.farm import cluster as clusters
from qeff_zoo.farm import zoo_file
from qeff_zoo.farm.planning import PUBLISHED, RED, plan_farm
from qeff_zoo.farm.running import Report, run
from qeff_zoo.site.reports import read_report
from qeff_zoo.store import Store

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.together("farm"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
NODE = {
    "num_cpus": 1,
    "memory": 4 << 30,
    "object_store_memory": 80 << 20,
    "resources": {"disk": 9000},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of two nodes that share one store, which is also that of these tests."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("farm")
        environment = {
            "QEFF_HOME": str(folder / "store"), "GIT_DIR": str(folder / "none"),  # no changes
            "HF_TOKEN": "hf_alice", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        for name, value in environment.items():
            patch.setenv(name, value)
        nodes = Cluster()
        try:
            nodes.add_node(include_dashboard=False, **NODE)
            nodes.add_node(**NODE)
            yield nodes.address
        finally:
            ray.shutdown()
            nodes.shutdown()


def variants_of(models: Models, folder: Path, count: int) -> Path:
    """Write fine-tunes of one model: the same configuration, other weights."""
    for number in range(count):
        copy = shutil.copytree(models.llama, folder / f"tune-{number:02}")
        tensors = load_file(copy / "model.safetensors")
        name = min(tensors)
        tensors[name] = (tensors[name] * (1 + number / 100)).astype(np.float32)
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def tunes(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variants_of(models, tmp_path_factory.mktemp("tunes"), 3)


def write_zoo(folder: Path, remote: str, text: str = "") -> Path:
    """Write a zoo of all models in a folder."""
    path = folder / "zoo.toml"
    private = "true" if remote.startswith("hf:") else "false"
    top = f'remote = "{remote}"\nprivate = {private}\n'
    path.write_text(f'{top}[[models]]\nmodel = "tune-*"\n{text}')
    return path


def farm(folder: Path, remote: str, address: str, text: str = "", **options: Any) -> Report:
    """Run a zoo of all models in a folder."""
    path = write_zoo(folder, remote, text)
    return run(plan_farm(zoo_file.read(path)), address=address, **options)


def states(report: Report) -> list[str]:
    return [cell.state for cell in report.cells]


def test_every_package_is_built_once_validated_and_published(
    address: str, tunes: Path, tmp_path: Path
) -> None:
    report = farm(tunes, f"file://{tmp_path}/zoo", address)

    assert states(report) == [PUBLISHED] * 3
    assert sum("trace" in cell.results for cell in report.cells) == 1  # of one architecture
    packages = [Store().lookup(cell.cell.build_key) for cell in report.cells]
    assert all(package and package.validated == "checkpoint" for package in packages)
    assert_whole(folder_files(tmp_path / "zoo"), *filter(None, packages))
    assert {cell.node for cell in report.cells} <= {node["NodeID"] for node in ray_nodes(address)}
    again = farm(tunes, f"file://{tmp_path}/zoo", address)
    assert not any(cell.results for cell in again.cells)


def ray_nodes(address: str) -> list[dict[str, Any]]:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    found: list[dict[str, Any]] = ray.nodes()
    ray.shutdown()
    return found


def test_a_failing_build_and_one_too_large_are_red_and_stop_nothing(
    address: str, models: Models, tmp_path: Path
) -> None:
    variants_of(models, tmp_path, 2)
    broken = load_file(tmp_path / "tune-00" / "model.safetensors")
    broken.pop("model.norm.weight")
    save_file(broken, tmp_path / "tune-00" / "model.safetensors", metadata={"format": "pt"})
    shutil.copytree(tmp_path / "tune-01", tmp_path / "large")
    (tmp_path / "large" / "README.md").write_text("---\nlicense: mit\n---\n")
    settings = json.loads((tmp_path / "large" / "config.json").read_bytes())
    (tmp_path / "large" / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 1e-4}))

    report = farm(
        tmp_path,
        f"file://{tmp_path}/zoo",
        address,
        '[[models]]\nmodel = "large"\nmemory = "900 GB"\n',
    )

    assert states(report) == [RED, PUBLISHED, RED]
    damaged, _, large = report.cells
    assert "model.norm.weight" in damaged.reason
    assert "It requires " in large.reason
    assert "GB of memory; expected a machine with that much" in large.reason
    content = tmp_path / "report.json"
    content.write_text(json.dumps(report.as_dict()))
    assert json.loads(content.read_bytes())["states"] == {"red": 2, "published": 1}
    failures = [*read_report(content)]  # as a site does
    assert [failure.model for failure in failures] == ["tune-00", "large"]
    assert "model.norm.weight" in failures[0].comparison.why
    planned = plan_farm(zoo_file.read(tmp_path / "zoo.toml")).cells
    assert planned[0].why.startswith("Last time: ")


def test_a_hub_that_answers_503_gets_every_package_once(
    address: str, tunes: Path, alice: LocalHub
) -> None:
    alice.fault("POST", "/commit/", status=503, times=2)

    report = farm(tunes, "hf://acme/zoo", address)

    assert states(report) == [PUBLISHED] * 3
    packages = [Store().lookup(cell.cell.build_key) for cell in report.cells]
    files = alice.files("acme/zoo")
    assert_whole(files, *filter(None, packages))


# --- workers that die -----------------------------------------------------------------------------
_AT_ONCE = 3  # workers that may be killed before another package is built


class Killer(threading.Thread):
    """Kills workers of our nodes at random moments, on a busy machine not all of them during the same step.

    Args:
        count: Number of workers to kill.
        seed: Seed of the moments.
    """

    def __init__(self, count: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._count, self._dice = count, random.Random(seed)
        self._packages = Store().folder(f"qz1-{0:064x}").parent
        self.killed = 0
        self.over = threading.Event()

    def run(self) -> None:
        least = 0  # packages of the store before the next kill
        while self.killed < self._count and not self.over.wait(self._dice.uniform(0.2, 2.5)):
            built = len([*self._packages.glob("*")])
            if self.killed >= _AT_ONCE and built < least:
                continue
            workers = [
                child
                for child in psutil.Process(os.getpid()).children(recursive=True)
                if _is_at_work(child)
            ]
            if workers:
                with suppress(psutil.Error):
                    self._dice.choice(workers).kill()
                    self.killed, least = self.killed + 1, built + 1


def _is_at_work(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "ray::_run" in " ".join(process.cmdline())
    return False


def with_killer(count: int, seed: int, action: Callable[[], Report]) -> Report:
    killer = Killer(count, seed)
    killer.start()
    try:
        report = action()
    finally:
        killer.over.set()
        killer.join()
    assert killer.killed
    return report


def test_builds_whose_workers_are_killed_are_run_again(
    address: str, models: Models, tmp_path: Path
) -> None:
    variants_of(models, tmp_path, 2)
    text = "[[variants]]\nctx_len = 24\n"

    report = with_killer(2, 44, lambda: farm(tmp_path, f"file://{tmp_path}/zoo", address, text))

    assert states(report) == [PUBLISHED] * 2
    packages = [Store().lookup(cell.cell.build_key) for cell in report.cells]
    assert_whole(folder_files(tmp_path / "zoo"), *filter(None, packages))


def interrupt(zoo: Path, address: str) -> None:
    """Run a farm in a process that is killed after its first package."""
    packages = Store().folder(f"qz1-{0:064x}").parent
    before = len([*packages.glob("*")])
    command = [
        sys.executable,
        "-m",
        "qeff_zoo",
        "farm",
        "run",
        str(zoo),
        "--address",
        address,
        "-q",
    ]
    with subprocess.Popen(command) as process:
        while process.poll() is None and len([*packages.glob("*")]) == before:
            time.sleep(0.1)
        assert process.poll() is None
        process.kill()


@pytest.mark.full
def test_thirty_builds(address: str, models: Models, tmp_path: Path, alice: LocalHub) -> None:
    variants_of(models, tmp_path, 9)
    large = shutil.copytree(tmp_path / "tune-00", tmp_path / "large")
    settings = json.loads((large / "config.json").read_bytes())
    (large / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 1e-4}))
    alice.fault("POST", "/commit/", status=503, times=3, skip=2)
    text = '[[models]]\nmodel = "large"\nmemory = "900 GB"\n[[variants]]\nctx_len = [24, 32, 40]\n'
    interrupt(write_zoo(tmp_path, "hf://acme/thirty", text), address)

    report = with_killer(8, 30, lambda: farm(tmp_path, "hf://acme/thirty", address, text))

    assert states(report) == [PUBLISHED] * 27 + [RED] * 3
    added = [title for title in titles(alice, "acme/thirty") if title.startswith("Add ")]
    assert len(added) == len({*added}) == 27  # none twice
    files = alice.files("acme/thirty")
    packages = [Store().lookup(cell.cell.build_key) for cell in report.cells[:27]]
    assert_whole(files, *filter(None, packages))


# --- machines that differ -------------------------------------------------------------------------
def test_a_machine_with_another_version_is_refused(
    address: str, tunes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = clusters.installed  # of this process, not of the workers
    ours = {"ray": "2.59.0", "qeff-zoo": "0.0.9"}
    monkeypatch.setattr(clusters, "installed", lambda name: ours.get(name) or here(name))

    with pytest.raises(FarmError) as caught:
        farm(tunes, f"file://{tmp_path}/zoo", address)

    assert len(caught.value.problems) == 4  # two a machine
    assert "has ray 2.60.0; expected 2.59.0, as here." in str(caught.value)
    assert "; expected 0.0.9 (" in str(caught.value)
