# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from fixtures_commits import HUB, card, commit, publish, url
from fixtures_index import ENTRY, OTHER
from local_hub import LocalHub

from qeff_zoo.errors import PublishError, TrustError, ZooError
from qeff_zoo.hub import index_tree
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import decode, encode
from qeff_zoo.hub.index_tree import Leaf
from qeff_zoo.hub.remotes import folder, open_remote
from qeff_zoo.hub.remotes.folder import FolderRemote

__all__ = ["url"]

# Of huggingface_hub's upload of LFS files, see the reference of its versions.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def numbered(number: int, *, model: str = ENTRY.model) -> Entry:
    return replace(ENTRY, path=f"packages/ort-int4/{number:016x}", model=model)


def index_of(url: str) -> Index:
    snapshot = open_remote(url).snapshot()
    assert snapshot is not None
    for entry in snapshot.index.entries:  # what is listed is there
        assert snapshot.read(f"{entry.path}/manifest.json", limit=200) == entry.path.encode()
    assert snapshot.read("README.md", limit=99) == card(snapshot.index)
    return snapshot.index


@pytest.fixture
def zoo(alice: LocalHub, home: Path, no_waiting: None) -> LocalHub:
    """Give a Hub with an empty repository of alice's."""
    alice.commit("alice/zoo", {".gitattributes": b"*.gz filter=lfs"})
    return alice


def test_files_and_index_are_published_together(url: str, tmp_path: Path) -> None:
    large = tmp_path / "model.bin"
    large.write_bytes(bytes(300_000))
    done = commit(
        url,
        upload={f"{ENTRY.path}/model.bin": large, f"{ENTRY.path}/manifest.json": b"{}"},
        update=lambda index: index.with_entry(ENTRY),
        message="add a package",
    )
    snapshot = open_remote(url).snapshot()
    assert snapshot is not None
    assert snapshot.index == Index(1, Leaf((ENTRY,)))
    assert snapshot.read(f"{ENTRY.path}/model.bin", limit=1 << 20) == bytes(300_000)
    assert done == url or done.endswith("/alice/zoo/commit/" + snapshot.url[-40:])


def test_second_commit_keeps_the_first(url: str) -> None:
    publish(url)
    publish(url, OTHER)
    assert index_of(url) == Index(2, Leaf((ENTRY, OTHER)))


def test_published_files_are_not_committed_again(url: str, alice: LocalHub) -> None:
    first = publish(url)
    before = index_of(url)
    alice.log.clear()
    assert publish(url) == first
    assert index_of(url) == before
    assert not [request for request in alice.log if request.method == "PUT"]


@pytest.fixture(params=["one file", "many files"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Give whether each model's packages are in a file of their own."""
    if request.param == "many files":
        monkeypatch.setattr(index_tree, "LEAF_PACKAGES", 1)
    return bool(request.param == "many files")


def test_many_publishers_at_once_lose_nothing(url: str, many: bool) -> None:
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for number in range(4):
                model = f"org/model-{number}" if many else ENTRY.model
                publish(url, numbered(10 * worker + number, model=model))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    index = index_of(url)
    assert index.serial == len(index.entries) == 16
    assert len(index.models) == (4 if many else 1)


def test_path_out_of_the_remote_is_refused(tmp_path: Path, home: Path) -> None:
    url = (tmp_path / "remote").as_uri()
    for name in ("../outside", "/etc/x", "a/../../b"):
        with pytest.raises(PublishError, match="the path"):
            commit(url, upload={"fine": b"x", name: b"x"}, update=lambda index: index, message="x")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "remote" / "fine").exists()


def test_error_of_the_change_is_passed_on_and_nothing_is_published(url: str) -> None:
    def refuse(index: Index) -> Index:
        raise PublishError("no")

    with pytest.raises(PublishError, match="no"):
        commit(url, upload={}, update=refuse, message="x")
    assert open_remote(url).snapshot() is None


@pytest.mark.parametrize("url", ["https://host/zoo", "http://localhost/zoo"])
def test_web_server_cannot_be_published_to(url: str, home: Path) -> None:
    with pytest.raises(PublishError, match="a web server only gives"):
        publish(url)


def test_remote_that_the_settings_only_read_is_not_published_to(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "zoo").as_uri()
    monkeypatch.setenv("QEFF_ZOO_STORES", f"ro+{url}")
    with pytest.raises(PublishError, match="it is only read"):
        publish(url)
    assert not (tmp_path / "zoo").exists()


def test_index_that_was_rolled_back_is_not_built_on(
    url: str, alice: LocalHub, tmp_path: Path
) -> None:
    publish(url)
    old = encode(index_of(url))
    publish(url, OTHER)
    index_of(url)
    if url == HUB:
        alice.commit("alice/zoo", {INDEX_NAME: old})
    else:
        (Path(open_remote(url).folder) / INDEX_NAME).write_bytes(old)  # type: ignore[attr-defined]
    with pytest.raises(TrustError, match="rolled back"):
        publish(url, numbered(3))


# Hub repositories


def test_commit_on_a_branch(zoo: LocalHub) -> None:
    zoo.models["alice/zoo"].branches["next"] = zoo.models["alice/zoo"].resolve("main")
    publish(f"{HUB}@next")
    assert index_of(f"{HUB}@next").entries == (ENTRY,)
    assert open_remote(HUB).snapshot() is None


def test_moved_head_is_read_again(zoo: LocalHub) -> None:
    publish(HUB)

    def other() -> None:
        index = decode(zoo.files("alice/zoo")[INDEX_NAME]).with_entry(OTHER)
        zoo.commit(
            "alice/zoo",
            {INDEX_NAME: encode(index), f"{OTHER.path}/manifest.json": OTHER.path.encode()},
        )

    zoo.fault("POST", "/commit/", call=other, status=412)
    publish(HUB, numbered(3))
    assert index_of(HUB) == Index(3, Leaf((ENTRY, OTHER, numbered(3))))
    zoo.fault("POST", "/commit/", status=412, times=100)
    with pytest.raises(PublishError, match="quiet moment"):
        publish(HUB, numbered(4))


ENDPOINTS = {
    "head": ("GET", "/api/models/alice/zoo"),
    "preupload": ("POST", "/preupload/"),
    "batch": ("POST", "/objects/batch"),
    "content": ("PUT", "/_content/"),
    "verify": ("POST", "/objects/verify"),
    "commit": ("POST", "/commit/"),
    "index": ("GET", "/resolve/"),
}


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_passing_trouble_at_each_endpoint_is_waited_for(
    zoo: LocalHub, endpoint: str, status: int
) -> None:
    publish(HUB)
    zoo.fault(*ENDPOINTS[endpoint], status=status, times=2)
    publish(HUB, OTHER)
    assert not any(fault.times for fault in zoo.faults)
    assert index_of(HUB) == Index(2, Leaf((ENTRY, OTHER)))


@pytest.mark.parametrize("status", [500, None], ids=["500", "no answer"])
def test_commit_whose_answer_is_lost_is_not_made_twice(zoo: LocalHub, status: int | None) -> None:
    publish(HUB)
    before = len(list(zoo.models["alice/zoo"].history()))
    zoo.fault("POST", "/commit/", served=True, status=status)
    done = publish(HUB, OTHER)
    assert len(list(zoo.models["alice/zoo"].history())) == before + 1
    assert done.endswith(zoo.models["alice/zoo"].resolve("main"))
    assert index_of(HUB) == Index(2, Leaf((ENTRY, OTHER)))


def test_pull_request_leaves_the_branch_as_it_is(zoo: LocalHub) -> None:
    publish(HUB)
    done = publish(HUB, OTHER, create_pr=True)
    assert "/discussions/1" in done
    assert index_of(HUB).entries == (ENTRY,)
    assert index_of(f"{HUB}@refs/pr/1").entries == (ENTRY, OTHER)


def test_pull_request_whose_answer_is_lost_is_not_opened_twice(zoo: LocalHub) -> None:
    zoo.fault("POST", "/commit/", served=True, status=500)
    with pytest.raises(PublishError):
        publish(HUB, create_pr=True)
    assert len(zoo.models["alice/zoo"].pulls) == 1


def test_folder_has_no_pull_requests(tmp_path: Path, home: Path) -> None:
    with pytest.raises(PublishError, match="no pull requests"):
        publish(tmp_path.as_uri(), create_pr=True)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("hf://alice/absent", "create it"),
        ("hf://bob/zoo", "may write"),
        ("hf://alice/zoo@absent", "create it"),
    ],
)
def test_refusal_of_the_hub_is_explained(zoo: LocalHub, url: str, advice: str) -> None:
    zoo.commit("bob/zoo", {"README.md": b"bob's"})
    with pytest.raises(PublishError, match=advice):
        publish(url)


def test_ignored_file_is_not_lost_in_silence(
    zoo: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    upload = HfApi.preupload_lfs_files

    def ignoring(self: HfApi, *args: Any, **kwargs: Any) -> None:
        upload(self, *args, **kwargs)
        for addition in kwargs["additions"]:
            addition._should_ignore = True

    monkeypatch.setattr(HfApi, "preupload_lfs_files", ignoring)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(PublishError, match=r"\.gitignore"):
        commit(
            HUB,
            upload={"model.bin": tmp_path / "model.bin"},
            update=lambda index: index,
            message="x",
        )


def test_offline_nothing_is_published(zoo: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    with pytest.raises(PublishError, match="offline"):
        publish(HUB)
    assert zoo.log == []


# Folders


def shown(folder: Path) -> Index:
    return decode((folder / INDEX_NAME).read_bytes())


def test_publisher_that_never_lets_go_is_not_waited_for_without_end(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path.as_uri())
    monkeypatch.setattr(folder, "_PATIENCE", 0.1)
    with FileLock(tmp_path / ".lock"), pytest.raises(PublishError, match=r"has held .*\.lock"):
        publish(tmp_path.as_uri(), OTHER)
    publish(tmp_path.as_uri(), OTHER)
    assert index_of(tmp_path.as_uri()).serial == 2


class Killed(BaseException):
    """Ends a publisher as a signal would."""


def deaths(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], bool]:
    """Let the process die at the so many-th change of the disk; give whether it did."""
    left = [at]

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (os, "rename"),
        (os, "replace"),
        (os, "fsync"),
        (os, "mkdir"),
        (os, "truncate"),
    ):
        monkeypatch.setattr(owner, name, deadly(getattr(owner, name)))
    return lambda: left[0] < 0


def test_killed_publisher_leaves_all_or_nothing_at_every_moment(
    tmp_path: Path, home: Path, many: bool
) -> None:
    other = replace(OTHER, model="org/other") if many else OTHER
    publish((tmp_path / "first").as_uri())
    for moment in range(100):
        folder = tmp_path / str(moment)
        url = folder.as_uri()
        shutil.copytree(tmp_path / "first", folder)
        with pytest.MonkeyPatch.context() as patch:
            died = deaths(patch, moment)
            try:
                publish(url, other)
            except Killed:
                assert died()
        snapshot = open_remote(url).snapshot()
        assert snapshot is not None
        for entry in snapshot.index.entries:
            assert snapshot.read(f"{entry.path}/manifest.json", limit=200) == entry.path.encode()
        assert snapshot.index.serial == len(snapshot.index.entries) in (1, 2)
        assert shown(folder) == snapshot.index
        publish(url, numbered(9))
        assert index_of(url) == shown(folder)
        assert shown(folder).packages == snapshot.index.serial + 1
        if not died():
            break
    assert 10 < moment < 99


def test_a_damaged_index_is_reported_and_not_extended(tmp_path: Path, home: Path) -> None:
    publish(tmp_path.as_uri())
    (tmp_path / INDEX_NAME).write_bytes(b"damaged")
    with pytest.raises(ZooError, match="The index cannot be read"):
        publish(tmp_path.as_uri(), OTHER)


def test_leftovers_of_a_killed_publication_are_removed(tmp_path: Path, home: Path) -> None:
    publish(tmp_path.as_uri())
    left = tmp_path / ".staging" / "publish-dead"
    left.mkdir()
    (left.parent / "publish-dead.owner").write_text("{}")
    for path in (left, left.parent / "publish-dead.owner"):
        os.utime(path, (1, 1))
    publish(tmp_path.as_uri(), OTHER)
    assert not any((tmp_path / ".staging").iterdir())


def test_a_folder_without_write_permission_is_reported(tmp_path: Path, home: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PublishError, match="may write"):
        publish((tmp_path / "file" / "zoo").as_uri())
    assert isinstance(open_remote(tmp_path.as_uri()), FolderRemote)
