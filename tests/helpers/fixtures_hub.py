# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: a Hub on the loopback, and a Hub cache of its own for every test.

Each process that runs tests has a server. No test of the session, nor a process that one starts, can reach any other
Hub.
"""

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import package_builder
import pytest
import warm
from local_hub import LocalHub

from qeff_zoo.package import Package
from qeff_zoo.store import Store

_ENVIRONMENT = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_ETAG_TIMEOUT": "2",
    "HF_ENDPOINT": "http://127.0.0.1:9",  # nothing listens there
}
_FOREIGN = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE")

if "huggingface_hub" in sys.modules:
    raise RuntimeError("huggingface_hub was imported before the environment of its tests was set")
_home = tempfile.mkdtemp(prefix="hf-home-")
os.environ.update(_ENVIRONMENT, HF_HOME=_home)
for _name in _FOREIGN:
    os.environ.pop(_name, None)


def pytest_unconfigure() -> None:
    shutil.rmtree(_home, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _own_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    """Start the Hub of this process, and give it a home; huggingface_hub and others were imported before."""
    hub = LocalHub().start()
    home = tmp_path_factory.mktemp("hf-home")
    os.environ.update(HF_ENDPOINT=hub.endpoint, HF_HOME=str(home))
    warm.read_environment()
    yield hub
    hub.stop()


@pytest.fixture
def hub(_own_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    """Give an empty Hub, and point the client to an empty cache."""
    from huggingface_hub import constants

    _own_hub.clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    yield _own_hub
    _own_hub.clear()


@pytest.fixture
def alice(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """Give an empty Hub to which alice is signed in; `alice/…` and `acme/…` are hers."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    return hub


@pytest.fixture
def make_package(tmp_path: Path, alice: LocalHub, home: Path) -> Callable[..., Package]:
    """Give a function that makes packages of one model; each `ctx_len` is another one of the same weights.

    They are copies of what the store has as built here.
    """
    alice.commit("org/tiny", {"config.json": b"{}"})
    alice.log.clear()
    folders = (tmp_path / f"package-{number}" for number in itertools.count())

    def made(ctx_len: int = 4096, **changes: Any) -> Package:
        shape = {**package_builder.SPEC["shape"], "ctx_len": ctx_len}
        return built_here(
            package_builder.fill(
                next(folders), **{"spec": {**package_builder.SPEC, "shape": shape}, **changes}
            )
        )

    return made


def built_here(package: Package) -> Package:
    """Put a copy of a package into the store, as one that was built there."""
    store = Store()
    with store.stage("build") as folder:
        shutil.copytree(package.path, folder, dirs_exist_ok=True)
        store.promote(folder, package.build_key)
    return package


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients try again at once where they would wait."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.fixture
def go_offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function after which all is as with HF_HUB_OFFLINE=1, till the test ends."""
    from huggingface_hub import constants

    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
