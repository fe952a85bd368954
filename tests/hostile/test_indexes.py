# SPDX-License-Identifier: Apache-2.0
"""Indexes that say something else to each of us, that stop others from publishing, or that cost too much."""

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from remote_builder import make, write_remote
from signing_keys import KeyPair, make_pair

from qeff_zoo import cli
from qeff_zoo.errors import PublishError, RemoteError, TrustError
from qeff_zoo.hub import index as index_module
from qeff_zoo.hub.index import INDEX_NAME, SERIAL_LIMIT, Index, Notice, decode, encode
from qeff_zoo.hub.publish.notice import publish_notice
from qeff_zoo.hub.pull import pull
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.hub.trust import index_signer
from qeff_zoo.hub.urls import canonical
from qeff_zoo.package import Package


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_pair(tmp_path_factory.mktemp("keys"), "acme")


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return make(tmp_path / "package")


@pytest.fixture
def zoo(tmp_path: Path, package: Package, home: Path) -> Path:
    write_remote(tmp_path / "zoo", package)
    return tmp_path / "zoo"


def shown(zoo: Path) -> Index:
    return decode((zoo / INDEX_NAME).read_bytes())


def put(zoo: Path, index: Index, key: Path | None = None) -> None:
    (zoo / INDEX_NAME).write_bytes(encode(index, index_signer(key) if key else None))


def ask(zoo: Path, ending: str = "") -> Index:
    snapshot = open_remote(zoo.as_uri() + ending).snapshot()
    assert snapshot is not None
    return snapshot.index


def test_another_index_of_the_same_serial_is_refused(zoo: Path) -> None:
    known = ask(zoo)
    (entry,) = known.entries
    put(zoo, replace(known, entries=(replace(entry, manifest="f" * 64),)))
    with pytest.raises(TrustError, match="another one of the same serial was seen before"):
        ask(zoo)
    # The same, packed otherwise, is the same.
    text = gzip.decompress(encode(known))
    (zoo / INDEX_NAME).write_bytes(gzip.compress(text, compresslevel=1))
    assert ask(zoo) == known


@pytest.mark.parametrize("ending", ["/", "//", "/."])
def test_a_slash_at_the_end_is_no_other_remote(zoo: Path, ending: str) -> None:
    old = shown(zoo)
    put(zoo, replace(old, serial=7))
    ask(zoo)
    put(zoo, old)
    with pytest.raises(TrustError, match="rolled back"):
        ask(zoo, ending)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://Host.example/zoo/", "https://host.example:443/zoo"),
        ("https://host.example/a%20b", "https://host.example/a b"),
        ("insecure+http://host/zoo", "insecure+http://HOST:80//zoo/"),
        ("hf://acme/zoo", "hf://acme/zoo@main"),
        ("file:///srv/zoo", "file://localhost/srv/./zoo/"),
        ("file:///", "file:////"),
    ],
)
def test_one_remote_has_one_name(url: str, same: str) -> None:
    assert canonical(url) == canonical(same) == canonical(canonical(url))


@pytest.mark.parametrize("serial", [2**53 - 1, 2**63, SERIAL_LIMIT - 1])
def test_a_large_serial_stops_nobody(zoo: Path, serial: int) -> None:
    put(zoo, replace(shown(zoo), serial=serial))
    (entry,) = ask(zoo).entries
    publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")
    assert ask(zoo).serial == serial + 1


def test_the_largest_serial_says_what_to_do(zoo: Path) -> None:
    put(zoo, replace(shown(zoo), serial=SERIAL_LIMIT))
    (entry,) = ask(zoo).entries
    with pytest.raises(PublishError, match=r"Begin it anew: remove index\.json\.gz"):
        publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")


def test_stray_files_stop_nobody(zoo: Path) -> None:
    (entry,) = ask(zoo).entries
    for name in (".index/999999999999", ".index/x", ".staging/stray", "packages/stray"):
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_text("stray")
    publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")
    assert ask(zoo).notices == {entry.path: Notice("yanked", "typo")}


# --- signed --------------------------------------------------------------------------------------


@pytest.fixture
def trusting(pair: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"mode": "require", "keys": [str(pair.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))


@pytest.mark.usefixtures("trusting")
def test_an_index_is_signed_where_a_key_is_pinned(zoo: Path, pair: KeyPair, tmp_path: Path) -> None:
    index = shown(zoo)
    with pytest.raises(TrustError, match=r"The index of .* is refused\. It is not signed"):
        ask(zoo)
    stranger = make_pair(tmp_path, "stranger")
    put(zoo, index, stranger.private)
    with pytest.raises(TrustError, match="is signed by a key that is not pinned"):
        ask(zoo)
    put(zoo, index, pair.private)
    assert ask(zoo) == index
    _, _, signature = gzip.decompress((zoo / INDEX_NAME).read_bytes()).partition(b"\n")
    text = gzip.decompress(encode(replace(index, serial=9)))
    (zoo / INDEX_NAME).write_bytes(gzip.compress(text + b"\n" + signature))
    with pytest.raises(TrustError, match=r"over something else than this index\.json"):
        ask(zoo)


def test_what_was_seen_unsigned_is_not_used_once_a_key_is_pinned(
    zoo: Path, request: pytest.FixtureRequest
) -> None:
    ask(zoo)
    request.getfixturevalue("trusting")
    with pytest.raises(TrustError, match="It is not signed"):
        ask(zoo)


def test_a_signature_is_not_taken_away(zoo: Path, pair: KeyPair) -> None:
    index = shown(zoo)
    put(zoo, index, pair.private)
    ask(zoo)
    (entry,) = index.entries
    with pytest.raises(PublishError, match="is signed; expected a signature over the next one"):
        publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")
    put(zoo, replace(index, serial=9))
    with pytest.raises(TrustError, match="is not signed, and the one that was seen before is"):
        ask(zoo)


@pytest.mark.usefixtures("trusting")
def test_notices_of_a_signed_index_are_signed(zoo: Path, pair: KeyPair) -> None:
    put(zoo, shown(zoo), pair.private)
    (entry,) = ask(zoo).entries
    yank = ["yank", zoo.as_uri(), entry.path, "--reason", "typo"]
    assert cli.main([*yank, "--sign-with", str(pair.private)]) == 0
    assert ask(zoo).notices[entry.path].reason == "typo"


# --- costs ---------------------------------------------------------------------------------------


def bodies() -> dict[str, bytes]:
    head = b'{"schema":"qeff-index/2","serial":1,"notices":{},"packages":['
    return {
        "lists": head + b"[]," * 10_000_000 + b"1]}",
        "few enough lists": head + b"[]," * 450_000 + b"1]}",
        "objects": head + b'{"a":1},' * 400_000 + b"1]}",
        "depth": b"[" * 30_000_000,
        "members": b"{" + b",".join(b'"%d":1' % number for number in range(900_000)) + b"}",
    }


@pytest.mark.parametrize("what", bodies())
def test_a_small_file_takes_no_gigabyte(what: str) -> None:
    content = gzip.compress(bodies()[what], compresslevel=9)
    assert len(content) < 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(RemoteError, match=r"^The index ") as refused:
            decode(content)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 1000


def test_only_the_first_problem_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    validator = index_module.validator(index_module._SCHEMA)

    class Counting:
        def iter_errors(self, found: Any) -> Any:
            nonlocal count
            for error in validator.iter_errors(found):
                count += 1
                yield error

    monkeypatch.setattr(index_module, "validator", lambda _: Counting())
    content = {"schema": "qeff-index/2", "serial": 1, "notices": {}, "packages": [{}] * 10_000}
    with pytest.raises(RemoteError, match=r"\$\.packages\[0\]"):
        decode(gzip.compress(json.dumps(content).encode()))
    assert count == 1


def test_a_bundle_brings_no_index_that_breaks_later_pulls(
    tmp_path: Path, package: Package, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that are no numbers were compared as numbers when the model was next asked for."""
    import io
    import tarfile

    write_remote(tmp_path / "zoo", package)
    content = json.loads(gzip.decompress((tmp_path / "zoo" / INDEX_NAME).read_bytes()))
    content["packages"][0]["axes"]["ctx_len"] = "many"
    bundle = tmp_path / "zoo.tar"
    with tarfile.open(bundle, "w") as tar:
        data = gzip.compress(json.dumps(content).encode())
        member = tarfile.TarInfo(INDEX_NAME)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    assert cli.main(["bundle", "import", str(bundle)]) == 1
    monkeypatch.setenv("QEFF_ZOO_STORES", (tmp_path / "zoo").as_uri())
    assert pull("org/tiny", {"ctx_len": 4096}).package.build_key == package.build_key
