# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: tiny checkpoints, and stores that have their graphs traced already.

A trace takes seconds and all that a build does else a tenth of one, so a test run traces a model once, however many
processes it has.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import warm
from sharing import made_once

from qeff_zoo.package import Package
from qeff_zoo.store import Store
from qeff_zoo.store.housekeeping import Entry

#: Slow to import, and of no use to who only asks.
HEAVY = ("torch", "transformers", "onnx", "onnxruntime")
TIMEOUT = 120  # seconds; a process that takes longer hangs

_PROBE = """
import json, os, sys
sys.dont_write_bytecode = True  # bytes are counted
from qeff_zoo.cli import main
try:
    code = main(sys.argv[2:])
except SystemExit as stop:
    code = stop.code
io = dict(line.split(": ") for line in open("/proc/self/io")) if os.path.exists("/proc/self/io") else {}
with open(sys.argv[1], "w") as report:
    json.dump({"code": code, "modules": [*sys.modules], "written": int(io.get("wchar", -1))}, report)
"""


@dataclass(frozen=True)
class Probed:
    """What a command did in a process of its own.

    Args:
        code: It returned.
        stdout: It printed.
        stderr: It said on the way.
        modules: All that were imported.
        written: Bytes handed to the system; -1 where that is not known.
    """

    code: int
    stdout: str
    stderr: str
    modules: frozenset[str]
    written: int

    def imported(self, names: tuple[str, ...] = HEAVY) -> set[str]:
        """Return which of some modules were imported."""
        return set(names) & self.modules


def command(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m qeff_zoo` in a process of its own, with pipes; it need not import torch."""
    return subprocess.run(
        [warm.PYTHON.executable, "-m", "qeff_zoo", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.fixture
def probe(tmp_path: Path) -> Callable[..., Probed]:
    """Give a function that runs a command in a process of its own, of any Python, and looks at the process."""

    def run(*arguments: object, python: str = sys.executable) -> Probed:
        report = tmp_path / "probe.json"
        done = subprocess.run(
            [python, "-c", _PROBE, str(report), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert report.exists(), done.stderr
        found = json.loads(report.read_text())
        modules = frozenset(found["modules"])
        return Probed(found["code"], done.stdout, done.stderr, modules, found["written"])

    return run


class Models:
    """Tiny checkpoints by name, made when first asked for, and stores with their graphs.

    Args:
        folder: Where they are kept; the processes of one test run share it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def checkpoint(self, name: str, model_type: str, **config: Any) -> Path:
        """Give a checkpoint in float32; not to be changed.

        Args:
            name: Of its folder.
            model_type: Names the recipe.
            config: Changes to the recipe's tiny config.
        """

        def make(folder: Path) -> None:
            import runnable_package  # and with it torch, which not every test run needs

            runnable_package.checkpoint(folder, model_type, **config)

        return made_once(self._folder / name, make)

    @property
    def llama(self) -> Path:
        return self.checkpoint("llama", "llama")

    @property
    def tied(self) -> Path:
        return self.checkpoint("tied", "llama", tie_word_embeddings=True)

    @property
    def odd(self) -> Path:
        """A Llama with heads of a size that no attention kernel takes."""
        return self.checkpoint("odd", "llama", head_dim=12)

    @property
    def bert(self) -> Path:
        return self.checkpoint("bert", "bert")

    @property
    def large(self) -> Path:
        """A checkpoint of 60 MB: tiny layers, and many words."""
        return self.checkpoint("large", "llama", vocab_size=120_000)

    def copy(self, source: Path, target: Path) -> Path:
        """Copy a checkpoint, to be changed."""
        shutil.copytree(source, target)
        return target

    def trace(self, checkpoint: Path, home: Path, **choices: Any) -> None:
        """Put the graph of a build into a store, and no package.

        Args:
            checkpoint: One of ours.
            home: The store.
            choices: Fields of `qeff_zoo.plan.request.Request`.
        """
        shutil.copytree(
            self._store(checkpoint, choices) / "graphs", home / "graphs", dirs_exist_ok=True
        )

    def build(self, checkpoint: Path, home: Path, **choices: Any) -> Package:
        """Put a package that nobody validated into a store, and its graph.

        Args:
            checkpoint: One of ours.
            home: The store.
            choices: Fields of `qeff_zoo.plan.request.Request`.
        """
        shutil.copytree(self._store(checkpoint, choices), home, dirs_exist_ok=True)
        (folder,) = (self._store(checkpoint, choices) / "packages").iterdir()
        return Package.open(home / "packages" / folder.name)

    def _store(self, checkpoint: Path, choices: dict[str, Any]) -> Path:
        def make(store: Path) -> None:
            from runnable_package import package

            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("QEFF_HOME", str(store))
                package(checkpoint, **choices)

        named = (f"{name}={value}" for name, value in sorted(choices.items()))
        return made_once(self._folder / "-".join(["store", checkpoint.name, *named]), make)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Give the checkpoints that all tests share."""
    folder = tmp_path_factory.getbasetemp() / "models"
    folder.mkdir(exist_ok=True)
    return Models(folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the store an empty one; it is a path that does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("QEFF_HOME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # pytest keeps the folders of three runs


def kept(home: Path, kind: str | None = None) -> list[Entry]:
    """List what a store holds, or what of a kind."""
    every = Store(home).entries()
    return [one for one in every if one.kind == kind or (kind is None and one.kind != "companions")]


def files_below(folder: Path) -> list[str]:
    """List every file and folder below a folder, by relative path."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
