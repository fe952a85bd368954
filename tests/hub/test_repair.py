# SPDX-License-Identifier: Apache-2.0
"""Damaged packages become whole, and only what is damaged is fetched."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import selection
from fixtures_pulls import assert_clean, partial_bytes
from kills import kill
from local_hub import LocalHub
from package_builder import overwrite
from remote_builder import entry_of, make, noise, remote, write_remote

from qeff_zoo import cli
from qeff_zoo.disk import staging
from qeff_zoo.errors import PackageError
from qeff_zoo.hub.pull.bundle import export_bundle, import_bundle
from qeff_zoo.hub.pull.repair import Repaired, repair
from qeff_zoo.hub.remotes import http
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME
from qeff_zoo.store import Store

pytestmark = pytest.mark.turns(2)

REPO = "acme/zoo"
WEIGHTS = noise(300_000)
CONFIG = b'{"model_type": "llama", "more": "than another"}'


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("QEFF_HOME", str(tmp_path / "home")),
        ("QEFF_ZOO_TRUST", "off"),
        ("QEFF_ZOO_STORES", f"hf://{REPO}"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(http, "_FIRST_PAUSE", 0.0)


@pytest.fixture
def published(hub: LocalHub, tmp_path: Path) -> Package:
    package = make(tmp_path / "published", {"model.onnx.data": WEIGHTS, "config.json": CONFIG})
    (package.path / "manifest.json.sigstore").write_bytes(b"a signature")
    hub.commit(REPO, remote(package))
    return package


@pytest.fixture
def pulled(published: Package, hub: LocalHub) -> Package:
    assert cli.main(["pull", "org/tiny"]) == 0
    hub.log.clear()
    found = Store().lookup(published.build_key)
    assert found is not None
    return found


def only(references: list[str] | None = None) -> Repaired:
    (outcome,) = repair(references or [])
    return outcome


def is_whole(package: Package, published: Package) -> bool:
    names = [MANIFEST_NAME, *(file["path"] for file in published.manifest["files"])]
    return Package.open(package.path).verify() == [] and all(
        (package.path / name).read_bytes() == (published.path / name).read_bytes() for name in names
    )


def identity(path: Path) -> tuple[int, int, int]:
    """Give what writing a file changes; reading it may change its time of access."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def test_intact_packages_are_left_alone(pulled: Package, hub: LocalHub) -> None:
    before = {path: identity(path) for path in pulled.path.rglob("*")}
    outcome = only()
    assert (outcome.problems, outcome.error, outcome.bytes_transferred) == ([], None, 0)
    assert {path: identity(path) for path in pulled.path.rglob("*")} == before
    assert hub.log == []


def same_size(path: Path) -> None:
    content = path.read_bytes()
    overwrite(path, content[:-1] + bytes([content[-1] ^ 1]))


def link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "of-the-same-size": same_size,
    "gone": Path.unlink,
    "shorter": lambda path: overwrite(path, path.read_bytes()[:-1]),
    "longer": lambda path: overwrite(path, path.read_bytes() + b"x"),
    "a-link": link,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["config.json", "model.onnx.data"])
def test_only_the_bad_file_is_fetched(
    pulled: Package, published: Package, hub: LocalHub, name: str, damage: str
) -> None:
    intact = {
        path.name: path.stat().st_ino
        for path in pulled.path.iterdir()
        if path.is_file() and not path.name.startswith((name, MANIFEST_NAME))
    }
    DAMAGE[damage](pulled.path / name)
    outcome = only()
    assert any(name in problem for problem in outcome.problems)
    assert outcome.error is None
    assert outcome.bytes_transferred == (published.path / name).stat().st_size
    assert is_whole(pulled, published)
    assert len([request for request in hub.log if name in request.path and request.sent]) == 1
    assert not hub.requests(MANIFEST_NAME)
    kept = {name: (pulled.path / name).stat().st_ino for name in intact}
    assert kept == intact or not can_link(pulled.path.parent.parent)
    assert only().problems == []


def can_link(folder: Path) -> bool:
    from qeff_zoo.disk.cloning import share

    (folder / "one").write_bytes(b"1")
    share(folder / "one", folder / "two")
    return (folder / "one").samefile(folder / "two")


@pytest.mark.parametrize(
    "damage",
    [
        same_size, Path.unlink, lambda path: overwrite(path, b"{}"),
        lambda path: overwrite(path, path.read_bytes().replace(b"2026-11-20", b"2026-11-21")),
        lambda path: path.with_name("manifest.json.sigstore").unlink(),
    ],
    ids=["same-size", "gone", "another", "plausible", "no-signature"],
)  # fmt: skip
def test_a_damaged_manifest_is_fetched_and_its_files_kept(
    pulled: Package, published: Package, hub: LocalHub, damage: Callable[[Path], Any]
) -> None:
    manifest = published.path / MANIFEST_NAME
    for other in make(published.path.parent / "other", ctx_len=8192), published:
        hub.commit(REPO, remote(other))
    damage(pulled.path / MANIFEST_NAME)
    outcome = only()
    assert outcome.problems
    assert outcome.error is None
    assert outcome.bytes_transferred == manifest.stat().st_size + len(b"a signature")
    assert is_whole(pulled, published)
    assert (pulled.path / "manifest.json.sigstore").read_bytes() == b"a signature"


def test_repair_removes_foreign_files_without_a_network(
    pulled: Package, published: Package, hub: LocalHub
) -> None:
    (pulled.path / "stranger.txt").write_text("x")
    outcome = only()
    assert (outcome.problems, outcome.error) == (["'stranger.txt' is not in the manifest"], None)
    assert is_whole(pulled, published)
    assert hub.log == []


def test_another_remote_helps_where_the_first_is_gone(
    pulled: Package,
    published: Package,
    hub: LocalHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same_size(pulled.path / "model.onnx.data")
    del hub.models[REPO]
    assert "No remote is known" in (only().error or "")
    monkeypatch.setenv("QEFF_ZOO_STORES", write_remote(tmp_path / "remote", published))
    assert only().error is None
    assert is_whole(pulled, published)


def test_a_package_that_was_built_here_is_repaired_from_where_it_was_published(
    published: Package, hub: LocalHub
) -> None:
    with Store().stage("build") as folder:
        shutil.copytree(published.path, folder, dirs_exist_ok=True)
        built = Store().promote(folder, published.build_key)
    same_size(built.path / "config.json")
    outcome = only()
    assert (outcome.error, outcome.bytes_transferred) == (None, len(CONFIG))
    assert is_whole(built, published)


def test_repair_keeps_files_that_no_remote_has(
    published: Package, hub: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.models.clear()
    with Store().stage("build") as folder:
        shutil.copytree(published.path, folder, dirs_exist_ok=True)
        built = Store().promote(folder, published.build_key)
    same_size(built.path / "config.json")
    assert cli.main(["repair"]) == 1
    assert "still damaged: No remote is known that has this package" in capsys.readouterr().out
    assert len(built.verify()) == 1


def test_a_remote_that_is_damaged_too_changes_nothing(
    pulled: Package, published: Package, hub: LocalHub
) -> None:
    same_size(pulled.path / "model.onnx.data")
    damaged = (pulled.path / "model.onnx.data").read_bytes()
    hub.fault("GET", "onnx.data", data=damaged, times=100)
    assert "also when fetched again" in (only().error or "")
    assert (pulled.path / "model.onnx.data").read_bytes() == damaged
    hub.faults.clear()
    assert only().error is None
    assert is_whole(pulled, published)


def test_a_file_that_packages_share_is_repaired_in_each(
    pulled: Package, published: Package, hub: LocalHub, tmp_path: Path
) -> None:
    """Where files are shared by links, damage to one is damage to all; it is fetched once."""
    longer = make(tmp_path / "longer", {"model.onnx.data": WEIGHTS}, ctx_len=8192)
    hub.commit(REPO, remote(published, longer))
    assert cli.main(["pull", "org/tiny", "--ctx-len", "8192"]) == 0
    for package in (pulled, Package.open(pulled.path.parent / longer.build_key)):
        same_size(package.path / "model.onnx.data")
    if hashlib.sha256((pulled.path / "model.onnx.data").read_bytes()).digest() == (
        hashlib.sha256(WEIGHTS).digest()
    ):
        same_size(pulled.path / "model.onnx.data")  # the second change had undone the first
    outcomes = repair([])
    assert sum(outcome.bytes_transferred for outcome in outcomes) == len(WEIGHTS)
    assert all(not problems for problems in Store().verify().values())


def test_packages_are_named_as_elsewhere(pulled: Package, tmp_path: Path) -> None:
    (pulled.path.parent / "x").mkdir()  # which is nobody's package
    assert only().path == pulled.path
    for reference in (pulled.build_key[:16], "org/tiny", str(pulled.path)):
        assert only([reference]).path == pulled.path
    with pytest.raises(PackageError, match="No package 'nothing' in the store"):
        repair(["nothing"])


def test_the_answer_in_json(pulled: Package, capsys: pytest.CaptureFixture[str]) -> None:
    same_size(pulled.path / "config.json")
    capsys.readouterr()
    assert cli.main(["repair", "org/tiny", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["build_key"] == pulled.build_key
    assert answer["path"] == str(pulled.path)
    assert (answer["bytes_transferred"], answer["error"]) == (len(CONFIG), None)
    assert entry_of(pulled).signed


def can_exchange(folder: Path) -> bool:
    (folder / "three").mkdir()
    (folder / "four").mkdir()
    return staging._exchange(folder / "three", folder / "four")


@pytest.mark.parametrize("source", ["remote", "bundle"])
@pytest.mark.sampled(2)
def test_a_repair_that_is_killed(
    pulled: Package,
    published: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
) -> None:
    """The package keeps its name: it is as damaged as it was, or whole."""
    if not can_exchange(tmp_path):
        pytest.skip("a folder cannot take another's place at once on this file system")
    argv, file = ["repair"], tmp_path / "zoo.tar"
    if source == "bundle":
        export_bundle([published], file)
        argv = ["bundle", "import", str(file)]
    same_size(pulled.path / "model.onnx.data")
    damaged = pulled.verify()
    (tmp_path / "before").mkdir()
    Store().root.rename(tmp_path / "before" / "home")
    runs = kill(argv, tmp_path / "before", tmp_path / "places", most=30, sizes=[200_000])
    assert len(runs) == 32 if selection.EVERY else len(runs) > 5
    for run in runs:
        monkeypatch.setenv("QEFF_HOME", str(run.place / "home"))
        store = Store()
        (found,) = store.verify().values()
        assert found in ([], damaged) if run.at else found == []
        before = partial_bytes(store.root)
        again = import_bundle(file)[0] if source == "bundle" else only()
        assert again.bytes_transferred == (len(WEIGHTS) - before if found else 0)
        assert is_whole(Package.open(store.folder(published.build_key)), published)
        assert_clean(store)
