# SPDX-License-Identifier: Apache-2.0
"""Indexes that say something else to each of us, that stop others from publishing, or that cost too much."""

import gzip
import json
import os
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from remote_builder import make, signing, write_remote
from signing_keys import KeyPair, make_pair

from qeff_zoo import cli
from qeff_zoo.errors import PublishError, RemoteError, TrustError
from qeff_zoo.hub import index_files
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import INDEX_NAME, SERIAL_LIMIT, Index
from qeff_zoo.hub.index_files import decode, encode
from qeff_zoo.hub.index_tree import Leaf
from qeff_zoo.hub.publish.notice import publish_notice
from qeff_zoo.hub.pull import pull
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.hub.remotes.protocol import changed
from qeff_zoo.hub.trust import index_signer, sign
from qeff_zoo.hub.urls import canonical, is_named
from qeff_zoo.package import Package
from qeff_zoo.package.schemas import violations
from qeff_zoo.store import Store

pytestmark = pytest.mark.turns(2)


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
    (zoo / INDEX_NAME).write_bytes(encode(*signing(index, key, zoo.as_uri())))


def send_request(zoo: Path, ending: str = "") -> Index:
    snapshot = open_remote(zoo.as_uri() + ending).snapshot()
    assert snapshot is not None
    return snapshot.index


def test_another_index_of_the_same_serial_is_refused(zoo: Path) -> None:
    known = send_request(zoo)
    (entry,) = known.entries
    put(zoo, replace(known, tree=Leaf((replace(entry, manifest="f" * 64),))))
    with pytest.raises(TrustError, match="another one of the same serial was seen before"):
        send_request(zoo)
    # The same, packed otherwise, is the same.
    text = gzip.decompress(encode(known))
    (zoo / INDEX_NAME).write_bytes(gzip.compress(text, compresslevel=1))
    assert send_request(zoo) == known


@pytest.mark.parametrize("ending", ["/", "//", "/."])
def test_a_slash_at_the_end_is_no_other_remote(zoo: Path, ending: str) -> None:
    old = shown(zoo)
    put(zoo, replace(old, serial=7))
    send_request(zoo)
    put(zoo, old)
    with pytest.raises(TrustError, match="rolled back"):
        send_request(zoo, ending)


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
def test_a_large_serial_does_not_block_publishing(zoo: Path, serial: int) -> None:
    put(zoo, replace(shown(zoo), serial=serial))
    (entry,) = send_request(zoo).entries
    publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")
    assert send_request(zoo).serial == serial + 1


def test_the_largest_serial_is_refused_with_advice(zoo: Path) -> None:
    put(zoo, replace(shown(zoo), serial=SERIAL_LIMIT))
    (entry,) = send_request(zoo).entries
    with pytest.raises(PublishError, match=r"Begin it anew: remove index\.json\.gz"):
        publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")


def test_stray_files_do_no_harm(zoo: Path) -> None:
    (entry,) = send_request(zoo).entries
    for name in (".index/999999999999", ".index/x", ".staging/stray", "packages/stray"):
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_text("stray")
    publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")
    assert send_request(zoo).notices == {entry.path: Notice("yanked", "typo")}


# --- signed --------------------------------------------------------------------------------------


@pytest.fixture
def trusting(pair: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"mode": "require", "keys": [str(pair.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))


@pytest.mark.usefixtures("trusting")
def test_an_index_is_signed_where_a_key_is_pinned(zoo: Path, pair: KeyPair, tmp_path: Path) -> None:
    index = shown(zoo)
    with pytest.raises(TrustError, match=r"The index of .* is refused\. It is not signed"):
        send_request(zoo)
    stranger = make_pair(tmp_path, "stranger")
    put(zoo, index, stranger.private)
    with pytest.raises(TrustError, match="is signed by a key that is not pinned"):
        send_request(zoo)
    put(zoo, index, pair.private)
    assert send_request(zoo).entries == index.entries
    _, _, signature = gzip.decompress((zoo / INDEX_NAME).read_bytes()).partition(b"\n")
    text = gzip.decompress(encode(replace(index, serial=9)))
    (zoo / INDEX_NAME).write_bytes(gzip.compress(text + b"\n" + signature))
    with pytest.raises(TrustError, match=r"over something else than this index\.json"):
        send_request(zoo)


def test_an_unsigned_index_is_refused_after_a_key_is_pinned(
    zoo: Path, request: pytest.FixtureRequest
) -> None:
    send_request(zoo)
    request.getfixturevalue("trusting")
    with pytest.raises(TrustError, match="It is not signed"):
        send_request(zoo)


def test_a_signature_is_not_taken_away(zoo: Path, pair: KeyPair) -> None:
    index = shown(zoo)
    put(zoo, index, pair.private)
    send_request(zoo)
    (entry,) = index.entries
    with pytest.raises(PublishError, match="is signed; expected a signature over the next one"):
        publish_notice(zoo.as_uri(), entry.path, "yanked", reason="typo")
    put(zoo, replace(index, serial=9))
    with pytest.raises(TrustError, match="is not signed as the one that was seen before is"):
        send_request(zoo)


@pytest.mark.usefixtures("trusting")
def test_notices_of_a_signed_index_are_signed(zoo: Path, pair: KeyPair) -> None:
    put(zoo, shown(zoo), pair.private)
    (entry,) = send_request(zoo).entries
    yank = ["yank", zoo.as_uri(), entry.path, "--reason", "typo"]
    assert cli.main([*yank, "--sign-with", str(pair.private)]) == 0
    assert send_request(zoo).notices[entry.path].reason == "typo"


# --- signed, of another remote, or by somebody else ------------------------------------------------


@pytest.fixture
def bad(zoo: Path, pair: KeyPair) -> str:
    """Publish a signed notice that a package is bad, and give its path."""
    put(zoo, shown(zoo), pair.private)
    (entry,) = shown(zoo).entries
    sign = index_signer(pair.private)
    return publish_notice(zoo.as_uri(), entry.path, "known_bad", reason="wrong", sign=sign).path


@pytest.mark.usefixtures("trusting")
def test_an_index_of_another_channel_is_refused(
    zoo: Path, pair: KeyPair, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same key signs the package and both indexes, and the other one does not say that the package is bad."""
    sign(package, key=pair.private)
    write_remote(zoo, package, serial=2, key=pair.private)
    (entry,) = shown(zoo).entries
    known = {"reason": "wrong", "sign": index_signer(pair.private)}
    publish_notice(zoo.as_uri(), entry.path, "known_bad", **known)
    assert cli.main(["pull", zoo.as_uri()]) == 20
    write_remote(zoo.with_name("nightly"), package, serial=9, key=pair.private)
    other = (zoo.with_name("nightly") / INDEX_NAME).read_bytes()
    (zoo / INDEX_NAME).write_bytes(other)
    assert cli.main(["pull", zoo.as_uri()]) == 1
    assert "nightly: another remote's was put in place of its own" in capsys.readouterr().err
    with pytest.raises(PublishError, match="it put another one's there"):
        changed(zoo.as_uri(), decode(other), decode(other), index_signer(pair.private))


def test_a_folder_is_served_under_the_urls_that_its_publisher_names(
    zoo: Path, pair: KeyPair, trusting: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served = ["https://Zoo.example/zoo/"]
    settings = {"stores": [{"url": zoo.as_uri(), "served_at": served}]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    monkeypatch.setenv("QEFF_ZOO_CONFIG", str(tmp_path / "config.json"))
    (entry,) = shown(zoo).entries
    monkeypatch.setenv("QEFF_ZOO_TRUST", "warn")  # the first signature
    publish_notice(zoo.as_uri(), entry.path, "yanked", reason="x", sign=index_signer(pair.private))
    index = shown(zoo)
    assert index.remotes == (zoo.as_uri(), "https://zoo.example/zoo")
    assert is_named("https://zoo.example:443/zoo", index.remotes)
    assert not is_named("https://zoo.example/nightly", index.remotes)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("hf://acme/zoo@main", True),
        (f"hf://acme/zoo@{'0' * 40}", True),  # a commit, of whatever branch
        ("hf://acme/zoo@dev", False),
        (f"hf://acme/other@{'0' * 40}", False),
        ("https://acme/zoo", False),
    ],
)
def test_a_branch_is_a_remote_and_a_commit_is_of_any(url: str, named: bool) -> None:
    assert is_named(url, ("hf://acme/zoo",)) == named


@pytest.mark.usefixtures("trusting")
def test_an_index_of_an_older_version_names_no_remote(
    zoo: Path, pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    (zoo / INDEX_NAME).write_bytes(encode(shown(zoo), index_signer(pair.private)))
    with pytest.raises(TrustError, match="does not name its remote, as an older version wrote it"):
        send_request(zoo)
    pins = json.loads(os.environ["QEFF_ZOO_TRUST"])
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps({**pins, "mode": "warn"}))
    (warning,) = send_request(zoo).warnings
    assert "does not name its remote" in warning
    # Whatever is published next names it.
    publish = {"reason": "typo", "sign": index_signer(pair.private)}
    publish_notice(zoo.as_uri(), shown(zoo).entries[0].path, "yanked", **publish)
    assert send_request(zoo).warnings == ()


@pytest.mark.parametrize("signed_by", [None, "stranger"])
def test_an_index_of_another_signer_is_never_used_silently(
    zoo: Path,
    bad: str,
    pair: KeyPair,
    signed_by: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"mode": "warn", "keys": [str(pair.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    key = make_pair(tmp_path, signed_by).private if signed_by else None
    genuine = shown(zoo)
    shutil.rmtree(Store().root / "remotes")  # of a user who asks for the first time
    put(zoo, replace(genuine, serial=99, tree=Leaf(genuine.entries)), key)
    message = "is signed by a key that is not pinned" if signed_by else "It is not signed"
    for argv in (["resolve", zoo.as_uri()], ["ls", zoo.as_uri()], ["pull", zoo.as_uri()]):
        cli.main(argv)
        out, err = capsys.readouterr()
        assert f"The index of {zoo.as_uri()}: It" in out + err
        assert message in out + err
    # And after one by the key that is pinned, it is not used at all.
    put(zoo, replace(genuine, serial=100), pair.private)
    assert send_request(zoo).notices.keys() == {bad}
    put(zoo, replace(genuine, serial=101, tree=Leaf(genuine.entries)), key)
    with pytest.raises(TrustError, match="is not signed as the one that was seen before is"):
        send_request(zoo)


# --- costs ---------------------------------------------------------------------------------------


def bodies() -> dict[str, bytes]:
    head = b'{"schema":"qeff-index/3","prefix":"","serial":1,"files":{},"notices":{},"packages":['
    return {
        "lists": head + b"[]," * 10_000_000 + b"1]}",
        "few enough lists": head + b"[]," * 450_000 + b"1]}",
        "objects": head + b'{"a":1},' * 400_000 + b"1]}",
        "depth": b"[" * 30_000_000,
        "members": b"{" + b",".join(b'"%d":1' % number for number in range(900_000)) + b"}",
    }


@pytest.mark.parametrize("what", bodies())
@pytest.mark.sampled(9)
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

    def counted(*given: Any) -> Any:
        nonlocal count
        for error in violations(*given):
            count += 1
            yield error

    monkeypatch.setattr(index_files, "violations", counted)
    root = {"schema": "qeff-index/3", "prefix": "", "serial": 1, "files": {}, "notices": {}}
    content = {**root, "packages": [{}] * 10_000}
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


@pytest.mark.parametrize("command", ["pull", "lock", "copy", "copy --dry-run"])
def test_what_an_index_lets_pass_is_printed(
    zoo: Path,
    package: Package,
    pair: KeyPair,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By every command that takes a package of it: an index that nobody pinned signed, and what it knows."""
    index = shown(zoo)
    (entry,) = index.entries
    put(zoo, index.with_notice(entry.path, Notice(state="superseded", reason="slow")))
    trusted = {"mode": "warn", "keys": [str(pair.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(trusted))
    url = zoo.as_uri()
    verb, *flags = command.split()
    there = [url, (tmp_path / "mirror").as_uri()]
    more = {"pull": [url], "lock": [url, "-o", str(tmp_path / "lock")], "copy": there}
    assert cli.main([verb, *more[verb], *flags]) == (11 if verb == "pull" else 0)
    err = capsys.readouterr().err
    assert err.count(f"The index of {url}: ") == 1
    assert err.count("superseded: slow") == 1
