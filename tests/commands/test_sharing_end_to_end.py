# SPDX-License-Identifier: Apache-2.0
"""A package from who builds it, by way of the Hub, to a machine that trusts nobody else; and what is refused there."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from local_hub import LocalHub
from package_builder import FILES, program
from remote_builder import make
from signing_keys import KeyPair, make_pair

from qeff_zoo import cli
from qeff_zoo.errors import RemoteError, TrustError, ZooError
from qeff_zoo.hub import trust
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import decode, encode
from qeff_zoo.hub.naming import full_name
from qeff_zoo.hub.pull import pull
from qeff_zoo.hub.remotes import http, open_remote
from qeff_zoo.hub.trust import SIGNATURE_LIMIT
from qeff_zoo.package import Package
from qeff_zoo.package.identity import tree_digest
from qeff_zoo.package.manifest import MANIFEST_LIMIT, MANIFEST_NAME, SIGNATURE_NAME, dump
from qeff_zoo.store import Store

REPO = "acme/zoo"
URL = f"hf://{REPO}"
MODEL = "org/tiny"
# The Hub's client hands its HTTP library what that wants to be handed otherwise.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    pytest.mark.turns(2),
]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_pair(tmp_path_factory.mktemp("keys"), "acme")


@pytest.fixture(autouse=True)
def other_machine(tmp_path: Path, pair: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a machine with an empty store, which trusts one key and knows one remote."""
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("QEFF_ZOO_STORES", URL)
    settings = {"mode": "require", "keys": [str(pair.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    monkeypatch.setattr(http, "_FIRST_PAUSE", 0.0)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    made = program()
    made["compiled_from"]["compiler"] = {"name": "onnxruntime", "version": version("onnxruntime")}
    return make(tmp_path / "built", programs=[made])


@pytest.fixture
def zoo(
    alice: LocalHub, package: Package, pair: KeyPair, capsys: pytest.CaptureFixture[str]
) -> LocalHub:
    """Give a Hub to which the package was published, signed."""
    publishing = ["publish", REPO, "--private", "--sign-with", str(pair.private)]
    for argv in (["sign", "--key", str(pair.private)], publishing):
        assert cli.main([argv[0], str(package.path), *argv[1:]]) == 0
    capsys.readouterr()
    return alice


@pytest.fixture
def signed(pair: KeyPair) -> Callable[[Index], bytes]:
    """Write an index as its publisher does."""
    return lambda index: encode(replace(index, remotes=(URL,)), trust.index_signer(pair.private))


def listed(hub: LocalHub) -> tuple[Index, Entry]:
    """Give the index that the Hub has, and the only package in it."""
    index = decode(hub.files(REPO)[INDEX_NAME])
    (entry,) = index.entries
    return index, entry


def refused(kind: type[ZooError], message: str) -> None:
    """Check that a pull is refused, and leaves nothing."""
    with pytest.raises(kind, match=message):
        pull(MODEL)
    assert [entry for entry in Store().entries() if entry.kind != "partial"] == []


def test_from_one_machine_to_another(
    zoo: LocalHub, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["resolve", MODEL, "--json"]) == 0
    resolved = json.loads(capsys.readouterr().out)
    _, entry = listed(zoo)
    assert (resolved["verdict"], resolved["package"]["path"]) == ("USE", entry.path)
    assert entry.signed

    assert cli.main(["pull", MODEL, "--quiet"]) == 0
    out, err = capsys.readouterr()
    pulled = Path(out.removesuffix("\n"))
    assert err.startswith(f"{full_name('org/tiny', entry.path)}: pulled, ")
    assert Store().lookup(package.build_key) == Package.open(pulled)
    for name in (MANIFEST_NAME, SIGNATURE_NAME, *FILES):
        assert (pulled / name).read_bytes() == (package.path / name).read_bytes()
    assert cli.main(["inspect", str(pulled), "--verify"]) == 0
    again = pull(MODEL)
    assert (again.hit, again.warnings) == (True, ())


def test_package_of_the_store_is_checked_against_the_policy(
    zoo: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(MODEL)
    stranger = make_pair(tmp_path, "stranger")
    settings = {"mode": "require", "keys": [str(stranger.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    with pytest.raises(TrustError, match="is signed by a key that is not pinned"):
        pull(MODEL)


def test_a_signature_that_comes_later(
    alice: LocalHub, package: Package, pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing = ["publish", str(package.path), REPO, "--sign-with", str(pair.private)]
    assert cli.main([*publishing, "--private"]) == 1  # built nowhere, and signed by nobody
    assert cli.main([*publishing, "--private", "--of-others"]) == 0
    refused(TrustError, "It is not signed")
    trust.sign(package, key=pair.private)
    assert cli.main(publishing) == 0
    assert pull(MODEL).warnings == ()
    with monkeypatch.context() as patch:
        patch.setenv("QEFF_ZOO_TRUST", "warn")  # nobody is pinned
        assert pull(MODEL).warnings == ()


# --- tampered with on the server -----------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 100, -2])
def test_one_byte_of_the_manifest(zoo: LocalHub, place: int) -> None:
    _, entry = listed(zoo)
    path = f"{entry.path}/{MANIFEST_NAME}"
    content = bytearray(zoo.files(REPO)[path])
    content[place] ^= 1
    zoo.commit(REPO, {path: bytes(content)})
    refused(RemoteError, "The manifest in .* has SHA-256 .*; expected")


def forge(
    hub: LocalHub, edit: Callable[[dict[str, Any]], None], signed: Callable[[Index], bytes]
) -> None:
    """Replace the manifest, and list it as if it were the one that was published."""
    index, entry = listed(hub)
    path = f"{entry.path}/{MANIFEST_NAME}"
    manifest = json.loads(hub.files(REPO)[path])
    edit(manifest)
    manifest["tree"] = tree_digest(manifest["files"])
    content = dump(manifest)
    forged = replace(Entry.of(manifest, content, signed=True), path=entry.path)
    hub.commit(REPO, {path: content, INDEX_NAME: signed(index.with_entry(forged))})


def test_a_manifest_that_agrees_with_index_and_files(
    zoo: LocalHub, signed: Callable[[Index], bytes]
) -> None:
    forge(zoo, lambda manifest: manifest.update(license="mit"), signed)
    refused(TrustError, "The signature is over something else than this manifest")


@pytest.mark.parametrize("mode", ["warn", "require"])
def test_a_path_outside_the_package(
    zoo: LocalHub,
    mode: str,
    pair: KeyPair,
    signed: Callable[[Index], bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Even of someone that is trusted."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["files"][0]["path"] = "../../escaped"

    forge(zoo, edit, signed)
    refused(TrustError, "The signature is over something else than this manifest")
    _, entry = listed(zoo)
    content = zoo.files(REPO)[f"{entry.path}/{MANIFEST_NAME}"]
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / MANIFEST_NAME).write_bytes(content)
    evil = Package(folder, json.loads(content))
    signature = trust.sign(evil, key=pair.private).read_bytes()
    zoo.commit(REPO, {f"{entry.path}/{SIGNATURE_NAME}": signature})
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps({"mode": mode, "keys": [str(pair.public)]}))
    refused(RemoteError, r"QZ-M004: path '\.\./\.\./escaped' has an empty, '\.' or '\.\.' part")
    assert not list(tmp_path.rglob("escaped"))


def test_a_swapped_file(zoo: LocalHub) -> None:
    _, entry = listed(zoo)
    path = f"{entry.path}/model.onnx.data"
    zoo.commit(REPO, {path: bytes(len(zoo.files(REPO)[path]))})
    refused(RemoteError, r"model\.onnx\.data")


def test_a_signature_taken_away(
    zoo: LocalHub,
    pair: KeyPair,
    signed: Callable[[Index], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, entry = listed(zoo)
    unsigned = signed(index.with_entry(replace(entry, signed=False)))
    zoo.commit(REPO, {INDEX_NAME: unsigned, f"{entry.path}/{SIGNATURE_NAME}": None})
    refused(TrustError, "It is not signed; the trust policy requires a signature")
    settings = {"mode": "warn", "keys": [str(pair.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    assert pull(MODEL).warnings == ("It is not signed: nothing proves who made it.",)


def test_a_signature_in_the_index_that_does_not_exist(zoo: LocalHub) -> None:
    _, entry = listed(zoo)
    zoo.commit(REPO, {f"{entry.path}/{SIGNATURE_NAME}": None})
    refused(RemoteError, SIGNATURE_NAME)


def test_a_signature_of_a_stranger(zoo: LocalHub, package: Package, tmp_path: Path) -> None:
    _, entry = listed(zoo)
    stranger = make_pair(tmp_path, "stranger")
    reference = trust.sign(package, key=stranger.private).read_bytes()
    zoo.commit(REPO, {f"{entry.path}/{SIGNATURE_NAME}": reference})
    refused(TrustError, "is signed by a key that is not pinned")


def test_an_index_that_was_rolled_back(zoo: LocalHub, pair: KeyPair) -> None:
    """Which would offer again what was yanked since."""
    before = zoo.files(REPO)[INDEX_NAME]
    _, entry = listed(zoo)
    yanking = ["yank", URL, entry.path, "--reason", "wrong answers"]
    assert cli.main(yanking) == 1  # it would not be signed any more
    assert cli.main([*yanking, "--sign-with", str(pair.private)]) == 0
    assert open_remote(URL).snapshot()
    zoo.commit(REPO, {INDEX_NAME: before})
    refused(TrustError, "it was rolled back")


@pytest.mark.parametrize(
    ("name", "size"), [(MANIFEST_NAME, MANIFEST_LIMIT), (SIGNATURE_NAME, SIGNATURE_LIMIT)]
)
def test_more_than_anybody_needs(zoo: LocalHub, name: str, size: int) -> None:
    _, entry = listed(zoo)
    path = f"{entry.path}/{name}"
    content = zoo.files(REPO)[path]
    zoo.commit(REPO, {path: content + b" " * (size + 1 - len(content))})
    refused(RemoteError, f"has more than {size:,} bytes")


def test_an_index_that_becomes_more_than_anybody_needs(zoo: LocalHub) -> None:
    bomb = gzip.compress(b'{"schema": "' + b" " * (256 << 20), mtime=0)
    assert len(bomb) < 1 << 20
    zoo.commit(REPO, {INDEX_NAME: bomb})
    refused(RemoteError, "index")
