# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: a Hub with a package to pull, and what must be true of a pull."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_hub import LocalHub
from remote_builder import make, noise, remote

from qeff_zoo.hub.pull import Pulled, Puller
from qeff_zoo.hub.pull.fetch import origin_of
from qeff_zoo.hub.remotes import http, open_remote
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME
from qeff_zoo.store import Store

REPO = "acme/zoo"
URL = f"hf://{REPO}"
WEIGHTS = noise(200_000)


@pytest.fixture
def pulling(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a store of the test's own, no trust policy, and no pauses between attempts."""
    monkeypatch.setenv("QEFF_ZOO_TRUST", "off")
    monkeypatch.setattr(http, "_FIRST_PAUSE", 0.0)


@pytest.fixture
def published(tmp_path: Path) -> Package:
    return make(tmp_path / "published", {"model.onnx.data": WEIGHTS})


@pytest.fixture
def zoo(hub: LocalHub, published: Package) -> LocalHub:
    """Give a Hub whose `acme/zoo` has the package."""
    hub.commit(REPO, remote(published))
    return hub


def pull(url: str = URL, number: int = 0, reporter: Any = None) -> Pulled:
    """Pull one of a remote's packages."""
    snapshot = open_remote(url).snapshot()
    assert snapshot is not None
    entry = snapshot.index.entries[number]
    puller = Puller(Store(), reporter) if reporter else Puller(Store())
    return puller.pull(snapshot, origin_of(snapshot, entry), entry)


def is_same(pulled: Package, published: Package) -> bool:
    """Compare two packages, byte by byte."""
    names = [MANIFEST_NAME, *(file["path"] for file in published.manifest["files"])]
    return pulled.verify() == [] and all(
        (pulled.path / name).read_bytes() == (published.path / name).read_bytes() for name in names
    )


def is_clean(home: Path) -> bool:
    """Return whether the store holds no package, and nothing that a later process would take for one."""
    return not any((home / "packages").glob("*")) and not any((home / "staging").glob("*"))


def partial_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "partials").glob("*[!r]"))


def content_bytes(published: Package) -> int:
    """Count what a pull of a package transfers: each content once, and the manifest."""
    contents = {file["digest"]: file["size"] for file in published.manifest["files"]}
    return sum(contents.values()) + (published.path / MANIFEST_NAME).stat().st_size


def assert_recovers(published: Package, again: Callable[[], Pulled] = pull) -> int:
    """Check what a killed pull left, pull again, and check that all is as if nothing had happened; give what came."""
    store = Store()
    assert {entry.state for entry in store.entries()} <= {"complete", "abandoned"}
    assert all(problems == [] for problems in store.verify().values())
    complete = store.lookup(published.build_key) is not None
    before = partial_bytes(store.root)

    pulled = again()

    assert is_same(pulled.package, published)
    assert pulled.hit == complete
    # Not a byte that had come and was written comes again.
    assert pulled.bytes_transferred == (0 if complete else content_bytes(published) - before)
    assert_clean(store)
    return pulled.bytes_transferred


def assert_clean(store: Store) -> None:
    """Check that a store has one package, and nothing else once it is swept."""
    store.gc()
    assert not any((store.root / "staging").iterdir())
    assert not any((store.root / "partials").iterdir())
    assert [(entry.kind, entry.state) for entry in store.entries()] == [("package", "complete")]
