# SPDX-License-Identifier: Apache-2.0
"""Kills, full disks, missing permissions and clocks that jump, for what is not a build, a pull or a publication.

Those have tests of their own: test_interrupted_build.py, test_interrupted_pull.py, test_publishing_faults.py; so
have the checkpoints of fine-tuning, and quantization where it is killed.
"""

import errno
import math
import os
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures_builds import Models
from kills import kill
from remote_builder import make, noise

from qeff_zoo import cli
from qeff_zoo.disk.digests import DigestCache
from qeff_zoo.package import Package
from qeff_zoo.store import Store


def fill(home: Path) -> Package:
    """Make a store with a package, a failed build and staging that a killed process left."""
    store = Store(home)
    with store.stage("build") as staged:
        package = store.promote(staged, make(staged, {"model.onnx.data": noise(5000)}).build_key)
    with store.stage("build") as staged:
        (staged / "log").write_text("failed")
        store.failed(staged, "qz1-" + "f" * 64)
    child = os.fork()
    if not child:
        staging = store.stage("build")
        (staging.__enter__() / "file").write_bytes(noise(100))
        os._exit(0)
    os.waitpid(child, 0)
    return package


def kinds(store: Store) -> list[tuple[str, str]]:
    return sorted((entry.kind, entry.state) for entry in store.entries())


def test_a_killed_removal_leaves_whole_packages_or_none(tmp_path: Path) -> None:
    package = fill(tmp_path / "before" / "home")
    assert ("staging", "abandoned") in kinds(Store(tmp_path / "before" / "home"))
    old = time.time() - 10 * 86400
    for path in (tmp_path / "before" / "home").rglob(f"*{package.build_key}*"):
        os.utime(path, (old, old))
    argv = ["cache", "gc", "--older-than", "1"]
    runs = kill(argv, tmp_path / "before", tmp_path / "places", most=6)
    assert {run.at for run in runs} > {"", "os.rename"}
    for run in runs:
        store = Store(run.place / "home")
        assert all(problems == [] for problems in store.verify().values())
        store.gc()
        assert kinds(store) in ([], *([[("package", "complete")]] if run.at else [])), run


def test_failed_removals_are_not_reported_as_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(home)
    denied = OSError(errno.EACCES, os.strerror(errno.EACCES))

    def deny(path: Path, ignore_errors: bool = False, **_: object) -> None:
        if not ignore_errors:
            raise denied

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", deny)
        assert cli.main(["cache", "gc"]) == 1
    printed_text = capsys.readouterr()
    assert "Cannot remove" in printed_text.err
    assert "Expected" in printed_text.err or "expected" in printed_text.err
    assert cli.main(["cache", "gc"]) == 0
    # What it could not finish is this process's, and goes when that has ended.
    assert {*kinds(Store(home))} <= {("package", "complete"), ("staging", "live")}


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file of this process grow beyond a few kilobytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_quantization_in_our_words(
    models: Models, home: Path, tmp_path: Path, request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "to" / "out"
    argv = ["quantize", str(models.llama), "-o", str(out), "-q"]
    request.getfixturevalue("small_files")
    assert cli.main(argv) == 1
    printed_text = capsys.readouterr().err
    assert "File too large" in printed_text
    assert "xpected" in printed_text
    assert "Something went wrong" not in printed_text
    assert not out.exists()
    assert [*out.parent.iterdir()] == []


def test_a_folder_that_may_not_be_written(
    models: Models,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shut, run, data = (tmp_path / name for name in ("shut", "run.yaml", "texts.jsonl"))
    shut.mkdir()
    data.write_text('{"text": "a"}\n' * 4)
    run.write_text(
        f"model_name: {models.llama}\ndata: {data}\noutput_dir: {shut / 'run'}\nmax_length: 64\n"
    )
    make_folder = os.mkdir

    def deny(path: object, *rest: object, **others: object) -> None:
        if str(path).startswith(str(shut)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make_folder(path, *rest, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "mkdir", deny)
    for argv in (["quantize", str(models.llama), "-o", str(shut / "out")], ["finetune", str(run)]):
        assert cli.main(argv) == 1
        printed_text = capsys.readouterr().err
        assert "Something went wrong" not in printed_text, printed_text
        assert "Permission denied" in printed_text, printed_text
        assert [*shut.iterdir()] == []


YEARS = 10 * 365 * 86400.0


@pytest.mark.parametrize("jump", [YEARS, -YEARS, -math.inf])
def test_a_clock_that_jumps_loses_nothing(
    jump: float, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = fill(home)
    store = Store(home)
    live = store.stage("build")
    staged = live.__enter__()  # of this process, which lives
    (staged / "file").write_bytes(b"a")
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: max(clock() + jump, 1.0))
    assert store.lookup(package.build_key) is not None
    store.gc()
    assert (staged / "file").exists()
    assert store.verify()[package.build_key] == []
    path = tmp_path / "file"
    path.write_bytes(b"one")
    cache = DigestCache(home / "digests")
    first = cache.digest(path)
    path.write_bytes(b"two")
    assert cache.digest(path) != first
    monkeypatch.setattr(time, "time", clock)
    assert [entry.key for entry in store.entries() if entry.kind == "package"] == [
        package.build_key
    ]
    live.__exit__(None, None, None)
    store.gc()
    assert kinds(store) == [("package", "complete")]
