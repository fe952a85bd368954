# SPDX-License-Identifier: Apache-2.0
"""A build that is killed, interrupted or out of room leaves nothing that a later one takes for finished."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir
import pytest
import selection
import warm
from fixtures_builds import TIMEOUT, Models, files_below, kept
from kills import kill as kill_at

import qeff_zoo
from qeff_zoo import package
from qeff_zoo.disk import staging
from qeff_zoo.errors import StoreError
from qeff_zoo.store import Store

pytestmark = pytest.mark.turns(3)

SEED = selection.seed(__name__)


# --- helpers --------------------------------------------------------------------------------------
def start(checkpoint: Path, *arguments: str, python: str | None = None) -> "subprocess.Popen[str]":
    """Begin to build in a process of its own, by default one that need not import torch."""
    python = python or warm.PYTHON.executable
    return subprocess.Popen(
        [python, "-m", "qeff_zoo", "build", str(checkpoint), "--no-validate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: "subprocess.Popen[str]", home: Path, pattern: str) -> bool:
    """Wait until the store has such a file; tell whether it was seen before the process was done."""
    end = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < end:
        if any(home.glob(pattern)):
            return True
        time.sleep(0.001)
    return False


def kill(process: "subprocess.Popen[str]", home: Path) -> None:
    """Kill a build, and wait until what runs in place of the process is gone with all that it has locked."""
    process.kill()
    process.communicate(timeout=TIMEOUT)
    assert process.returncode in (-signal.SIGKILL, 0)  # it may just have finished
    end = time.monotonic() + TIMEOUT
    while any(entry.state == "live" for entry in kept(home)) and time.monotonic() < end:
        time.sleep(0.001)


def assert_recovers(home: Path, checkpoint: Path, **choices: Any) -> None:
    """Check what a killed build left, build again, and check that all is as if nothing had happened."""
    store = Store(home)
    left = kept(home)
    assert {entry.state for entry in left} <= {"complete", "abandoned"}
    assert all(problems == [] for problems in store.verify().values())
    done = [entry.key for entry in left if entry.kind == "package"]

    built = qeff_zoo.build(checkpoint, validate=False, **choices)

    assert built.verify() == []
    assert done in ([], [built.build_key])
    store.gc()
    assert files_below(home / "staging") == []
    assert [(entry.kind, entry.state) for entry in kept(home)] == [
        ("package", "complete"),
        ("graph", "complete"),
    ]
    assert built.unlisted() == []
    assert not any("/." in name for name in files_below(home / "packages"))  # nor a scratch file


# --- SIGKILL --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def seconds(models: Models, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Measure a build whose graph is there."""
    home = tmp_path_factory.mktemp("measured")
    models.trace(models.llama, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        begun = time.monotonic()
        process = start(models.llama)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    return time.monotonic() - begun


@pytest.mark.parametrize(
    "share", [round(random.Random(SEED + n).uniform(0.2, 1.0), 3) for n in range(selection.few(5))]
)
def test_killed_at_a_random_moment(
    models: Models, home: Path, seconds: float, share: float
) -> None:
    models.trace(models.llama, home)

    process = start(models.llama)
    time.sleep(share * seconds)
    kill(process, home)

    assert_recovers(home, models.llama)


@pytest.mark.parametrize(
    "delay", [round(random.Random(SEED - n).uniform(0, 0.1), 4) for n in range(selection.few(2))]
)
def test_killed_while_weights_are_written(models: Models, home: Path, delay: float) -> None:
    models.trace(models.large, home)

    process = start(models.large, "--weights", "int8")
    wait_for(process, home, "staging/build-*/weights.safetensors")
    time.sleep(delay)
    kill(process, home)

    assert_recovers(home, models.large, weights="int8")


@pytest.mark.parametrize("moment", ["while-it-traces", "once-it-has-traced"])
@pytest.mark.sampled(2)
def test_killed_without_a_graph(models: Models, home: Path, moment: str) -> None:
    process = start(models.llama)
    if moment == "while-it-traces":
        assert wait_for(process, home, "staging/graph-*")
        time.sleep(random.Random(SEED).uniform(0, 1))
    else:
        assert wait_for(process, home, "graphs/*")
    kill(process, home)

    assert_recovers(home, models.llama)


def test_killed_before_every_single_change_of_the_store(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.llama, tmp_path / "warm" / "home")
    argv = ["build", str(models.llama), "--no-validate"]
    runs = kill_at(argv, tmp_path / "warm", tmp_path / "places")
    assert len(runs) > (20 if selection.EVERY else 5)
    assert {run.at for run in runs} >= {"open", "os.mkdir", "os.rename", "os.remove", "os.chmod"}
    for run in runs:
        monkeypatch.setenv("QEFF_HOME", str(run.place / "home"))
        assert_recovers(run.place / "home", models.llama)
        shutil.rmtree(run.place)


# --- SIGINT ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", [pytest.param("graph", marks=pytest.mark.full), "weights"])
def test_an_interrupted_command_cleans_up_and_reports_it(
    models: Models, home: Path, stage: str
) -> None:
    if stage == "weights":
        models.trace(models.large, home)
    before = files_below(home / "graphs")

    pattern = {"graph": "staging/graph-*", "weights": "staging/build-*/weights.safetensors"}[stage]
    for _ in range(5):  # on a busy machine it may be through before we see it
        process = start(models.large, "--weights", "int8", python=sys.executable)
        recorded = wait_for(process, home, pattern)
        process.send_signal(signal.SIGSTOP)
        if recorded and any(
            home.glob(pattern)
        ):  # it is in that stage, and stays there until it is told
            break
        process.kill()
        process.communicate(timeout=TIMEOUT)
        shutil.rmtree(home / "packages", ignore_errors=True)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    stdout, stderr = process.communicate(timeout=TIMEOUT)

    assert (process.returncode, stdout) == (130, "")
    assert stderr == "qeff-zoo: interrupted; nothing half-made counts as done.\n"
    assert files_below(home / "staging") == files_below(home / "packages") == []
    assert files_below(home / "graphs") == before


def test_interrupted_at_any_line_staging_is_taken_back(tmp_path: Path) -> None:
    """Ctrl-C comes between two lines: a window of one line is one that users hit."""
    line = 0
    interrupted = True
    while interrupted:
        line += 1
        lines = iter(range(1, 10**6))

        def at(
            frame: Any, event: str, _: Any, line: int = line, lines: Iterator[int] = lines
        ) -> Any:
            if frame.f_code is not staging.staged.__wrapped__.__code__:  # type: ignore[attr-defined]
                return None
            if event == "line" and next(lines) == line:
                raise KeyboardInterrupt
            return at

        interrupted = False
        sys.settrace(at)
        try:
            with staging.staged(tmp_path, "build"):
                sys.settrace(None)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        assert files_below(tmp_path) == []
    assert line > 5


# --- no room --------------------------------------------------------------------------------------
def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_after(count: int, step: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that fails as on a full disk, once it was called so often."""
    calls: Iterator[int] = iter(range(10**6))

    def take(*arguments: Any, **options: Any) -> Any:
        return step(*arguments, **options) if next(calls) < count else full()

    return take


NO_ROOM = {
    "for-the-weights": (os, "posix_fallocate", full),
    "within-the-weights": (os, "pwrite", full_after(5, os.pwrite)),
    "on-flushing": (os, "fsync", full),
    "for-the-graph": (onnx_ir, "save", full),
    "for-the-tokenizer": (shutil, "copyfile", full),
    "for-the-manifest": (package, "write_durably", full),
}


@pytest.mark.parametrize("place", NO_ROOM)
def test_a_disk_that_fills_up_is_the_stores_error(
    models: Models, home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    models.trace(models.llama, home)
    module, name, step = NO_ROOM[place]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, step)
        with pytest.raises(StoreError, match="No space left on device") as caught:
            qeff_zoo.build(models.llama, validate=False)

    assert "QEFF_HOME" in str(caught.value)
    assert "xpected" in str(caught.value)
    assert [entry.kind for entry in kept(home)] == ["graph"]
    assert files_below(home / "staging") == files_below(home / "packages") == []
    assert qeff_zoo.build(models.llama, validate=False).verify() == []
