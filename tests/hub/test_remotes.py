# SPDX-License-Identifier: Apache-2.0
import gzip
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_index import ENTRY, OTHER
from fixtures_remotes import _WATCH, Place, no_sockets, place, urls, write
from local_hub import LocalHub
from static_server import served

from qeff_zoo.errors import RemoteError, TrustError
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.index_tree import Leaf
from qeff_zoo.hub.remotes import (
    configured_remotes,
    folder,
    http,
    is_read_only,
    is_repository,
    open_remote,
    remotes_for,
)
from qeff_zoo.hub.trust import index_cache

__all__ = ["no_sockets", "place"]

INDEX = Index().with_entry(ENTRY)
NEWER = INDEX.with_entry(OTHER)
FILE = "packages/x/model.onnx"
CONTENT = bytes(range(256)) * 500


def _refuse_sockets(event: str, _: Any) -> None:
    if _WATCH and event.startswith(("socket.__new__", "socket.getaddrinfo", "socket.connect")):
        _WATCH.append(event)
        raise PermissionError(f"{event} while the test allows no socket")


sys.addaudithook(_refuse_sockets)


def test_nothing_is_there_before_something_is_published(place: Place) -> None:
    assert place.remote.snapshot() is None


def test_remote_gives_its_index_and_files(place: Place) -> None:
    place.put({INDEX_NAME: encode(INDEX), FILE: CONTENT})
    snapshot = place.remote.snapshot()
    assert snapshot is not None
    assert snapshot.index == INDEX
    assert snapshot.read(FILE, limit=len(CONTENT)) == CONTENT
    with snapshot.stream(FILE) as pieces:
        assert b"".join(pieces) == CONTENT


@pytest.mark.parametrize("offset", [1, 255, len(CONTENT) - 1])
def test_file_is_read_from_a_byte_on(place: Place, offset: int) -> None:
    place.put({INDEX_NAME: encode(INDEX), FILE: CONTENT})
    snapshot = place.remote.snapshot()
    assert snapshot is not None
    with snapshot.stream(FILE, offset=offset) as pieces:
        assert b"".join(pieces) == CONTENT[offset:]


def test_file_that_is_too_large_or_absent_is_refused(place: Place, no_waiting: None) -> None:
    place.put({INDEX_NAME: encode(INDEX), FILE: CONTENT})
    snapshot = place.remote.snapshot()
    assert snapshot is not None
    with pytest.raises(RemoteError, match="more than 100 bytes"):
        snapshot.read(FILE, limit=100)
    for name in (
        "packages/x/absent",
        "../index.json.gz",
        "/etc/passwd",
        "packages//x",
        "~/x",
        "a\\b",
    ):
        with pytest.raises(RemoteError) as caught:
            snapshot.read(name, limit=100)
        assert not caught.value.retryable


def test_newer_index_is_used_and_older_one_refused(place: Place) -> None:
    place.put({INDEX_NAME: encode(INDEX)})
    place.remote.snapshot()
    place.put({INDEX_NAME: encode(NEWER)})
    snapshot = place.remote.snapshot()
    assert snapshot is not None
    assert snapshot.index == NEWER
    place.put({INDEX_NAME: encode(INDEX)})
    with pytest.raises(TrustError, match="serial 1, and one of 2 was seen before"):
        place.remote.snapshot()
    with pytest.raises(TrustError):  # it was not remembered
        place.remote.snapshot()


def test_damaged_index_is_refused(place: Place) -> None:
    place.put({INDEX_NAME: gzip.compress(b"{}")})
    with pytest.raises(RemoteError, match="The index"):
        place.remote.snapshot()


def test_index_that_is_too_large_is_not_read_to_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (folder, http):
        monkeypatch.setattr(module, "INDEX_LIMIT", 1000)
    place.put({INDEX_NAME: encode(INDEX) + bytes(10_000)})
    with pytest.raises(RemoteError, match="more than 1,000 bytes"):
        place.remote.snapshot()


def test_offline_the_latest_index_is_used_without_a_socket(
    place: Place, monkeypatch: pytest.MonkeyPatch, no_sockets: list[str]
) -> None:
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    no_sockets.clear()
    place.put({INDEX_NAME: encode(INDEX)})
    local = place.remote.url.startswith("file:")
    no_sockets.append("on")
    if not local:
        with pytest.raises(RemoteError, match="was not seen before"):
            place.remote.snapshot()
    monkeypatch.delenv("QEFF_ZOO_OFFLINE")
    no_sockets.clear()
    place.remote.snapshot()
    no_sockets.append("on")
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    for snapshot in (place.remote.snapshot(), place.remote.snapshot(offline=True)):
        assert snapshot is not None
        assert snapshot.index == INDEX
        if not local:
            with pytest.raises(RemoteError, match="QEFF_ZOO_OFFLINE"):
                snapshot.read(FILE, limit=100)
    assert no_sockets == ["on"]


def test_store_that_cannot_be_written_only_forgets(place: Place, home: Path) -> None:
    home.write_text("a file where the store would be")
    place.put({INDEX_NAME: encode(INDEX)})
    for _ in range(2):
        snapshot = place.remote.snapshot()
        assert snapshot is not None
        assert snapshot.index == INDEX


def test_damaged_memory_of_an_index_is_not_trusted(home: Path, hub: LocalHub) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX)})
    remote = open_remote("hf://acme/zoo")
    remote.snapshot()
    (file,) = (home / "remotes").iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"x", b"{}\n", whole.replace(b"acme", b"acmf")):
        file.write_bytes(damaged)
        snapshot = remote.snapshot()
        assert snapshot is not None
        assert snapshot.index == INDEX


@pytest.mark.parametrize("small", [(), (INDEX_NAME,)], ids=["large", "small"])
@pytest.mark.parametrize("web", [False, True], ids=["hub", "web"])
def test_index_is_sent_once(hub: LocalHub, home: Path, web: bool, small: tuple[str, ...]) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX)}, small=small)
    remote = open_remote(f"{hub.endpoint}/acme/zoo/resolve/main" if web else "hf://acme/zoo")
    remote.snapshot()
    hub.log.clear()
    for _ in range(3):
        snapshot = remote.snapshot()
        assert snapshot is not None
        assert snapshot.index == INDEX
    assert [(request.method, request.sent) for request in hub.log] == [("GET", 0)] * 3


def test_snapshot_of_a_repository_is_of_one_commit(hub: LocalHub, home: Path) -> None:
    first = hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX), FILE: b"old"})
    remote = open_remote("hf://acme/zoo")
    before = remote.snapshot()
    hub.commit("acme/zoo", {INDEX_NAME: encode(NEWER), FILE: b"new"})
    after = remote.snapshot()
    assert before is not None
    assert after is not None
    assert before.url == f"hf://acme/zoo@{first}"
    assert (before.read(FILE, limit=9), after.read(FILE, limit=9)) == (b"old", b"new")
    again = open_remote(before.url).snapshot()
    assert again is not None
    assert again.index == INDEX
    hub.log.clear()
    assert open_remote(before.url).snapshot() == again
    assert hub.log == []  # a commit does not change


def test_commit_moves_on_where_the_index_stays(hub: LocalHub, home: Path) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX)})
    open_remote("hf://acme/zoo").snapshot()
    newest = hub.commit("acme/zoo", {"README.md": b"new words"})
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None
    assert snapshot.url == f"hf://acme/zoo@{newest}"


def test_branch_and_missing_revision(hub: LocalHub, home: Path) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX)})
    hub.commit("acme/zoo", {INDEX_NAME: encode(NEWER)}, branch="next")
    snapshot = open_remote("hf://acme/zoo@next").snapshot()
    assert snapshot is not None
    assert snapshot.index == NEWER
    with pytest.raises(RemoteError, match="no-such"):
        open_remote("hf://acme/zoo@no-such").snapshot()


def test_token_is_sent_to_the_hub_alone(alice: LocalHub, home: Path, tmp_path: Path) -> None:
    alice.commit("alice/zoo", {INDEX_NAME: encode(INDEX), FILE: CONTENT})
    alice.models["alice/zoo"].private = True
    snapshot = open_remote("hf://alice/zoo").snapshot()
    assert snapshot is not None
    assert snapshot.read(FILE, limit=len(CONTENT)) == CONTENT
    tokens = {request.path.split("/")[1]: request.token for request in alice.log}
    assert tokens == {"alice": "hf_alice", "_content": None}
    write(tmp_path / "web", {INDEX_NAME: encode(INDEX)})
    with served(tmp_path / "web") as (url, headers):
        open_remote(url).snapshot()
    assert len(headers) == 1
    assert "authorization" not in {name.lower() for name in headers[0]}


def test_private_repository_looks_absent_without_a_token(hub: LocalHub, home: Path) -> None:
    hub.commit("alice/zoo", {INDEX_NAME: encode(INDEX)})
    hub.models["alice/zoo"].private = True
    assert open_remote("hf://alice/zoo").snapshot() is None


def test_gated_repository_is_refused_with_advice(hub: LocalHub, home: Path) -> None:
    hub.commit("alice/zoo", {INDEX_NAME: encode(INDEX)})
    hub.models["alice/zoo"].gated = True
    with pytest.raises(RemoteError, match="accept the terms") as caught:
        open_remote("hf://alice/zoo").snapshot()
    assert not caught.value.retryable


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("path", ["/resolve/", "/_content/"])
def test_passing_trouble_is_waited_for(
    hub: LocalHub, home: Path, no_waiting: None, status: int, path: str
) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX), FILE: CONTENT})
    hub.fault("GET", path, status=status, times=http.ATTEMPTS - 1)
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None
    hub.fault("GET", path, status=status, times=http.ATTEMPTS - 1)
    assert snapshot.read(FILE, limit=len(CONTENT)) == CONTENT
    hub.fault("GET", path, status=status, times=100)
    with pytest.raises(RemoteError, match=str(status)) as caught:
        snapshot.read(FILE, limit=len(CONTENT))
    assert caught.value.retryable


@pytest.mark.parametrize("cut", [0, 1, 1000, len(CONTENT) - 1])
def test_cut_connection_is_noticed_in_a_stream_and_made_good_in_a_read(
    hub: LocalHub, home: Path, no_waiting: None, cut: int
) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX), FILE: CONTENT})
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None
    hub.fault("GET", "/_content/", cut=cut)
    received = bytearray()

    def take() -> None:
        with snapshot.stream(FILE) as pieces:
            for piece in pieces:
                received.extend(piece)

    with pytest.raises(RemoteError) as caught:
        take()
    assert caught.value.retryable
    assert CONTENT.startswith(received)
    with snapshot.stream(FILE, offset=len(received)) as pieces:
        assert bytes(received) + b"".join(pieces) == CONTENT
    hub.fault("GET", "/_content/", cut=cut)
    assert snapshot.read(FILE, limit=len(CONTENT)) == CONTENT


def test_error_of_the_reader_is_not_taken_for_one_of_the_network(hub: LocalHub, home: Path) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX), FILE: CONTENT})
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None

    def fill() -> None:
        with snapshot.stream(FILE) as pieces:
            next(pieces)
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fill()


def test_server_that_ignores_ranges_is_read_rightly(hub: LocalHub, home: Path) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX), FILE: CONTENT})
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None
    hub.fault("GET", "/_content/", whole=True)
    with snapshot.stream(FILE, offset=1234) as pieces:
        assert b"".join(pieces) == CONTENT[1234:]


def answer(status: int, headers: Mapping[str, str], *pieces: bytes) -> http.Answer:
    return http.Answer("https://x", status, headers, iter(pieces))


@pytest.mark.parametrize(
    ("given", "rest"),
    [
        (answer(206, {"content-range": "bytes 4-9/10"}, b"456789"), b"456789"),
        (answer(206, {"content-range": "bytes 2-9/10"}, b"23", b"456789"), b"456789"),
        (answer(200, {}, b"01", b"", b"2345", b"6789"), b"456789"),
        (answer(206, {"content-range": "bytes 5-9/10"}, b"56789"), None),
        (answer(206, {"content-range": "bytes */10"}, b"456789"), None),
        (answer(206, {}, b"456789"), None),
    ],
    ids=["asked", "earlier", "whole", "later", "no place", "no header"],
)
def test_part_is_taken_for_what_it_is(
    monkeypatch: pytest.MonkeyPatch, given: http.Answer, rest: bytes | None
) -> None:
    monkeypatch.setattr(http, "_follow", lambda *_: given)

    def take() -> bytes:
        with http.get("https://x", offset=4) as found:
            return b"".join(found.pieces)

    if rest is None:
        with pytest.raises(RemoteError):
            take()
    else:
        assert take() == rest


@pytest.mark.parametrize(
    "location", ["http://example.com/x", "file:///etc/passwd", "ftp://x/y", "", "javascript:1"]
)
def test_redirect_to_where_it_must_not_lead_is_refused(location: str) -> None:
    with pytest.raises(RemoteError, match="it leads to"):
        http._redirected("https://host/a", location)


def test_redirects_end(hub: LocalHub, home: Path) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX)})
    here = {"Location": "/acme/zoo/resolve/main/index.json.gz"}
    hub.fault("GET", "index.json.gz", status=302, headers=here, times=100)
    with pytest.raises(RemoteError, match="redirected more than 5 times"):
        open_remote("hf://acme/zoo").snapshot()


def test_renamed_repository_is_followed_with_the_token(alice: LocalHub, home: Path) -> None:
    alice.commit("alice/new", {INDEX_NAME: encode(INDEX)})
    alice.models["alice/new"].private = True
    alice.fault(
        "GET",
        "/alice/old/",
        status=307,
        headers={"Location": "/alice/new/resolve/main/index.json.gz"},
    )
    snapshot = open_remote("hf://alice/old").snapshot()
    assert snapshot is not None
    assert snapshot.index == INDEX


def test_unreachable_server_is_a_remote_error(
    home: Path, no_waiting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RemoteError, match="Expected a server that answers") as caught:
        open_remote("http://127.0.0.1:1/zoo").snapshot()
    assert caught.value.retryable


def test_etag_of_another_server_is_not_taken_over(hub: LocalHub, home: Path) -> None:
    """The index of one commit must not be read as that of another that says 304 to everything."""
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX)})
    open_remote("hf://acme/zoo").snapshot()
    hub.fault("GET", "index.json.gz", status=304)
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None
    assert snapshot.index == INDEX
    hub.fault("GET", "index.json.gz", status=304)
    with pytest.raises(RemoteError):
        open_remote("hf://acme/other").snapshot()


@pytest.mark.parametrize(
    "url",
    [
        "hf://acme", "hf://acme/zoo/more", "hf://../x", "hf://./x", "hf://acme/{name}", "acme/zoo", "/srv/zoo", "",
        "file://host/zoo", "file:relative", "http://mirror.example/zoo", "https://", "https://u:p@host/x",
        "https://host/x?y=1", "https://host/x#y", "ftp://host/x", "s3://bucket/x", "https://[bad/x",
    ],
)  # fmt: skip
def test_url_that_names_no_remote_is_refused(url: str) -> None:
    with pytest.raises(RemoteError, match="names no remote"):
        open_remote(url)


@pytest.mark.parametrize(
    "url",
    [
        "hf://acme/zoo", "hf://acme/zoo@v1.0", "hf://acme/zoo@refs/pr/1", "https://host/zoo/", "http://localhost:8000",
        "http://127.0.0.1/x", "http://[::1]/x", "insecure+http://mirror.lan/zoo", "file:///srv/zoo", "file://localhost/srv",
    ],
)  # fmt: skip
def test_url_is_kept_as_it_was_given(url: str) -> None:
    remote = open_remote(url)
    assert remote.url == url
    assert remote.read_only is ("http" in url)


def test_folder_with_odd_characters_is_found(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "a zoo, at 100 %"
    write(folder, {INDEX_NAME: encode(INDEX)})
    assert open_remote(folder.as_uri()).snapshot() is not None


def test_repository_names() -> None:
    assert all(map(is_repository, ("org/repo", "org/repo@v1", "a.b/c-d_e.f")))
    assert not any(
        map(is_repository, ("repo", "./repo", "../x", "org/repo/x", "org/.hidden", "hf://org/repo"))
    )


def test_remotes_are_those_of_the_settings_then_the_repository(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    given = "https://mirror.example/{org}/{name}, hf://my-zoo/{org}--{name}-qpc\nro+file:///srv/zoo hf://org/model"
    monkeypatch.setenv("QEFF_ZOO_STORES", given)
    assert urls(remotes_for("org/model")) == [
        "https://mirror.example/org/model", "hf://my-zoo/org--model-qpc", "file:///srv/zoo", "hf://org/model",
    ]  # fmt: skip
    assert urls(remotes_for("org/other"))[-2:] == ["hf://org/model", "hf://org/other"]
    assert urls(configured_remotes("plain-name")) == ["file:///srv/zoo", "hf://org/model"]
    assert [remote.read_only for remote in remotes_for("org/model")] == [True, False, True, False]
    monkeypatch.setenv("QEFF_ZOO_STORES", "")
    assert urls(remotes_for("org/model@v1")) == ["hf://org/model@v1"]


def test_name_cannot_lead_out_of_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_STORES", "https://mirror.example/zoo/{org}/{name}")
    assert urls(configured_remotes("a/../../etc")) == ["https://mirror.example/zoo/a/..%2F..%2Fetc"]


def test_read_only_remotes_of_the_settings_are_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_STORES", "ro+hf://my-zoo/{org}--{name} hf://acme/zoo")
    assert is_read_only("hf://my-zoo/org--model")
    assert is_read_only("hf://my-zoo/org--model/")
    assert not is_read_only("hf://acme/zoo")
    assert not is_read_only("hf://my-zoo/a/b")


def test_memory_of_indexes_is_apart_for_each_hub(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = index_cache.FetchedIndex(encode(NEWER), NEWER, "etag", "c" * 40)
    index_cache.accept("hf://a/b", kept)
    assert index_cache.recall("hf://a/b") == kept
    monkeypatch.setenv("HF_ENDPOINT", "https://other.example")
    assert index_cache.recall("hf://a/b") is None
    monkeypatch.undo()


def test_index_is_not_forgotten_for_an_older_one_that_came_late(home: Path) -> None:
    newer, older = (
        index_cache.FetchedIndex(encode(NEWER), NEWER),
        index_cache.FetchedIndex(encode(INDEX), INDEX),
    )

    def late(before: index_cache.FetchedIndex | None) -> index_cache.FetchedIndex:
        assert before is None
        index_cache.accept("https://host/zoo", newer)  # by another process, while we were waiting
        return older

    with pytest.raises(TrustError):
        index_cache.newest("https://host/zoo", late)
    assert index_cache.recall("https://host/zoo") == newer


def test_notice_reaches_those_who_saw_the_index_before(hub: LocalHub, home: Path) -> None:
    hub.commit("acme/zoo", {INDEX_NAME: encode(INDEX)})
    open_remote("hf://acme/zoo").snapshot()
    yanked = INDEX.with_notice(ENTRY.path, Notice("yanked", "typo"))
    hub.commit("acme/zoo", {INDEX_NAME: encode(yanked)})
    snapshot = open_remote("hf://acme/zoo").snapshot()
    assert snapshot is not None
    assert snapshot.index.notices[ENTRY.path].reason == "typo"
    assert replace(snapshot.index, tree=Leaf(snapshot.index.entries), serial=1) == INDEX
