# SPDX-License-Identifier: Apache-2.0
"""Kills, full disks, missing permissions and clocks that jump, for what is not a build, a pull or a publication.

Those have tests of their own: test_interrupted_build.py, test_interrupted_pull.py, test_publishing_faults.py; so
have the checkpoints of fine-tuning, and farms.
"""

import errno
import importlib
import json
import math
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import datasets
import pytest
from fixtures_builds import Models, files_below, kept
from kills import kill
from remote_builder import make, noise

from qeff_zoo import cli
from qeff_zoo.disk.digests import DigestCache
from qeff_zoo.package import Package
from qeff_zoo.store import Store

pytestmark = pytest.mark.turns(3)


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


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder by name; empty for an absent one."""
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def test_a_killed_quantization_leaves_a_whole_checkpoint_or_none(
    models: Models, tmp_path: Path
) -> None:
    argv = ["quantize", str(models.llama), "-o", "{place}/out", "-q"]
    (tmp_path / "before").mkdir()
    whole, *runs = kill(argv, tmp_path / "before", tmp_path / "places", most=12)
    expected = content_of(whole.place / "out")
    assert {run.at for run in runs} >= {"open", "os.mkdir", "os.rename", "os.remove"}
    for run in runs:
        out = run.place / "out"
        if not out.exists():
            assert cli.main([*argv[:3], str(out), "-q"]) == 0
            assert [path.name for path in run.place.iterdir()] == ["out"], run
        assert content_of(out) == expected, run


def test_a_killed_fine_tuning_goes_on_to_the_same_adapter(models: Models, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    texts = "".join(f'{{"text": "a b c {number}"}}\n' for number in range(8))
    (tmp_path / "before" / "texts.jsonl").write_text(texts)
    argv = [
        *("finetune", "--model-name", str(models.llama), "--data", "{place}/texts.jsonl"),
        *("--max-steps", "2", "--save-strategy", "steps", "--save-steps", "1"),
        *("--max-length", "64", "--output-dir", "{place}/run"),
    ]
    whole, *runs = kill(argv, tmp_path / "before", tmp_path / "places", most=30)
    expected = content_of(whole.place / "run" / "adapter")
    assert {run.at for run in runs} >= {"open", "os.mkdir", "os.rename"}
    for run in runs:
        again = [one.replace("{place}", str(run.place)) for one in argv]
        if not (run.place / "run" / "adapter").exists():
            assert cli.main(again) == 0 or cli.main([*again, "--resume", "last"]) == 0, run
        found = content_of(run.place / "run" / "adapter")
        name = "adapter_model.safetensors"
        assert (found.keys(), found[name]) == (expected.keys(), expected[name]), run


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


def test_data_for_which_memory_is_short_are_not_called_wrong(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Of the library that reads them, as real limits let Python itself wait for threads that never begin."""
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "a"}\n' * 4)

    def load(*_: object, **__: object) -> None:
        raise datasets.exceptions.DatasetGenerationError("An error occurred") from MemoryError()

    monkeypatch.setattr(datasets, "load_dataset", load)
    argv = [
        "finetune",
        "--model-name",
        str(models.llama),
        "--data",
        str(data),
        "--max-length",
        "64",
    ]
    assert cli.main([*argv, "--output-dir", str(tmp_path / "run")]) == 1
    printed_text = capsys.readouterr().err
    assert "Out of memory while" in printed_text, printed_text
    assert str(data) in printed_text
    assert not (tmp_path / "run").exists()


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


# --- memory ---------------------------------------------------------------------------------------


def _all_that_is_free() -> list[bytearray]:
    """Hold the memory that this process has from the system and does not use."""
    held: list[bytearray] = []
    for size in (1 << 20, 1 << 16, 1 << 13):
        with suppress(MemoryError):
            while True:
                held.append(bytearray(size))
    return held


def run_short_of_memory(argv: list[str], mebibytes: int, output: Path) -> tuple[int, str]:
    """Run a command in a fork with little more memory than this process; return its exit code and what it printed.

    Args:
        argv: Arguments of the command.
        mebibytes: Memory beyond that of this process.
        output: File for what it prints.
    """
    child = os.fork()
    if not child:
        code = 99
        try:
            status = Path("/proc/self/status").read_text()
            size = int(status.partition("VmSize:")[2].split()[0]) << 10
            resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
            held = _all_that_is_free()
            resource.setrlimit(resource.RLIMIT_AS, (size + (mebibytes << 20),) * 2)
            if (
                "torch" in sys.modules
            ):  # a fork has none of this process's OpenMP threads, and would wait for them
                sys.modules["torch"].set_num_threads(1)
            with output.open("w") as text, redirect_stdout(text), redirect_stderr(text):
                code = cli.main(argv)
            del held
            output.with_suffix(".modules").write_text(json.dumps([*sys.modules]))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.read_text()


def import_modules_of(argv: list[str], output: Path) -> None:
    """Run a command with much memory, and import what it imports: imports without memory break Python itself."""
    code, printed = run_short_of_memory(argv, 4096, output)
    assert code == 0, printed
    for module in json.loads(output.with_suffix(".modules").read_bytes()):
        with suppress(Exception):  # some cannot be imported by their names
            importlib.import_module(module)


SHORT = re.compile("Out of memory|Cannot start a thread")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("mebibytes", [2, 16, 40])
@pytest.mark.sampled(3)
def test_a_build_out_of_memory_reports_it_and_succeeds_later(
    models: Models, home: Path, tmp_path: Path, mebibytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fork that has what a build imports, and little more memory than this process."""
    models.trace(models.large, home)
    argv = ["build", str(models.large), "--no-validate", "--weights", "int8"]
    with monkeypatch.context() as other:
        other.setenv("QEFF_HOME", str(tmp_path / "other"))
        models.trace(models.large, tmp_path / "other")
        import_modules_of(argv, tmp_path / "output")
    code, printed = run_short_of_memory(argv, mebibytes, tmp_path / "output")
    assert code == 1
    assert SHORT.search(printed), printed
    assert "in the stage 'weights'" in printed
    assert [entry.kind for entry in kept(home)] == ["graph"]
    assert files_below(home / "staging") == []
    assert cli.main(argv) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(("name", "mebibytes"), [("run", 8), ("quantize", 8)])
@pytest.mark.sampled(2)
def test_a_command_out_of_memory_reports_it_and_leaves_nothing_half_written(
    name: str, mebibytes: int, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It runs with much memory, and once this process has what it imports, with too little."""
    for place in ("much", "little"):
        home, out = tmp_path / place / "home", tmp_path / place / "out"
        monkeypatch.setenv("QEFF_HOME", str(home))
        package = str(models.build(models.large, home).path) if name == "run" else ""
        before = kept(home)
        argv = {
            "run": ["run", package, "--prompt", "a b", "--generation-len", "2"],
            "quantize": ["quantize", str(models.large), "-o", str(out)],
        }[name]
        if place == "much":
            import_modules_of(argv, tmp_path / "output")
    code, printed = run_short_of_memory(argv, mebibytes, tmp_path / "output")
    assert code == 1
    assert SHORT.search(printed), printed
    assert "Something went wrong" not in printed
    assert not out.exists()
    assert [entry for entry in kept(home) if entry.state == "complete"] == before
