# SPDX-License-Identifier: Apache-2.0
"""An index in several files says what a plain list of its packages says, whatever the order of the publications."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_commits import card, publish
from fixtures_index import ENTRY
from fixtures_remotes import Place, no_sockets, place
from hypothesis import given, settings
from hypothesis import strategies as st
from local_hub import LocalHub
from remote_builder import index_in

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import index_files, index_tree
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import FOLDER_NAME, files_of, stale_files
from qeff_zoo.hub.index_tree import Leaf, Page, divided
from qeff_zoo.hub.publish.notice import publish_notice
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.hub.trust import index_cache

# Of huggingface_hub's upload of LFS files, see the reference of its versions.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

__all__ = ["no_sockets", "place"]  # fixtures


def entry_of(model: int, package: int = 0) -> Entry:
    path = f"packages/ort-int4/{model * 1000 + package:016x}"
    return replace(ENTRY, path=path, model=f"org/model-{model}")


def index_of(entries: list[Entry]) -> Index:
    index = Index()
    for entry in entries:
        index = index.with_entry(entry)
    return index


@pytest.fixture
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_tree, "LEAF_PACKAGES", 1)


# --- the tree ------------------------------------------------------------------------------------

PACKAGES = st.lists(
    st.builds(entry_of, st.integers(0, 30), st.integers(0, 3)), max_size=60, unique_by=str
)


@settings(max_examples=50)
@given(PACKAGES, st.integers(1, 6), st.integers(1, 9), st.data())
def test_split_index_equals_the_plain_list(
    entries: list[Entry], most: int, bits: int, data: st.DataObject
) -> None:
    known = [entry.path for entry in entries]
    noted = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_tree, "LEAF_PACKAGES", most)
        for module in (index_tree, index_files):
            patch.setattr(module, "PAGE_BITS", bits)
        index = index_of(entries)
        notices = {path: Notice("yanked", f"reason {number}") for number, path in enumerate(noted)}
        for path, notice in notices.items():
            index = index.with_notice(path, notice)
        assert index.serial == len(entries) + len(noted)
        assert index.tree == divided(Leaf(tuple(entries), notices))  # the same for any history
        read = index_in(files_of(index))
        assert read.packages == len(entries)
        assert sorted(read.entries, key=str) == sorted(entries, key=str)
        assert read.notices == notices
        assert read.models == tuple(sorted({entry.model for entry in entries}))
        for model in {f"org/model-{number}" for number in range(32)}:
            expected = tuple(entry for entry in entries if entry.model == model)
            assert read.of_model(model) == expected
            leaf = read.leaf_of(model)
            assert {each.path for each in expected} & notices.keys() <= leaf.notices.keys()
            assert len(leaf.entries) <= most or len({each.model for each in leaf.entries}) == 1


@settings(max_examples=25)
@given(PACKAGES, st.integers(1, 4))
def test_a_publication_changes_few_files_and_leaves_none_behind(
    entries: list[Entry], most: int
) -> None:
    files: dict[str, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_tree, "LEAF_PACKAGES", most)
        patch.setattr(index_tree, "PAGE_BITS", 3)
        index = Index()
        for entry in entries:
            after = index.with_entry(entry)
            written, stale = files_of(after), stale_files(index, after)
            assert len(stale) <= 22  # pages above one leaf
            files = {path: files[path] for path in files.keys() - {*stale}} | written
            index = index_in(files)
        assert files.keys() == {*([INDEX_NAME] if entries else []), *stale_files(index, Index())}
        assert files == (files_of(index_of(entries)) if entries else {})


def test_packages_of_one_model_stay_in_one_file(small_leaves: None) -> None:
    several = index_of([entry_of(1, number) for number in range(5)])
    assert isinstance(several.tree, Leaf)
    both = several.with_entry(entry_of(2))
    assert isinstance(both.tree, Page)
    assert len(both.of_model("org/model-1")) == 5
    assert both.with_entry(entry_of(2)) is both
    assert both.with_notice(entry_of(2).path, None) is both


def test_a_model_id_may_be_any_text(small_leaves: None) -> None:
    assert index_of([entry_of(1), entry_of(2)]).of_model("\udcff") == ()


# --- remotes -------------------------------------------------------------------------------------

ENTRIES = [entry_of(number) for number in range(4)]


def send_request(place: Place) -> Index:
    snapshot = place.remote.snapshot()
    assert snapshot is not None
    return snapshot.index


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a list of the files of an index that are checked from now on."""
    checked: list[str] = []
    decode = index_files.decode_file

    def decode_file(*given: object, known: bool = False) -> object:
        checked.extend([] if known else [str(given[1])])
        return decode(*given, known=known)  # type: ignore[arg-type]

    monkeypatch.setattr(index_cache, "decode_file", decode_file)
    return checked


def test_a_file_of_an_index_is_fetched_and_checked_once(
    place: Place, small_leaves: None, read: list[str]
) -> None:
    index = index_of(ENTRIES)
    place.put(files_of(index))
    for _ in range(2):
        assert send_request(place).of_model("org/model-0") == (ENTRIES[0],)
        assert len(read) == 1
    assert send_request(place).entries == index.entries
    assert len(read) == len(ENTRIES)
    # After a publication, what it changed alone.
    later = index.with_notice(ENTRIES[0].path, Notice("yanked", "x"))
    place.put(files_of(later))
    assert send_request(place).entries == index.entries
    assert send_request(place).notices == later.notices
    assert len(read) == len(ENTRIES) + 1


def test_offline_the_requested_models_are_available(
    place: Place, small_leaves: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put(files_of(index_of(ENTRIES)))
    send_request(place).of_model("org/model-0")
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    assert send_request(place).of_model("org/model-0") == (ENTRIES[0],)
    if not place.remote.url.startswith("file:"):
        with pytest.raises(RemoteError, match="was not seen before"):
            send_request(place).of_model("org/model-1")


def test_a_damaged_file_of_the_cache_is_fetched_again(
    place: Place, small_leaves: None, home: Path
) -> None:
    place.put(files_of(index_of(ENTRIES)))
    send_request(place).of_model("org/model-0")
    (kept,) = home.glob("remotes/*.files/*")
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"x"):
        kept.write_bytes(damaged)
        assert send_request(place).of_model("org/model-0") == (ENTRIES[0],)
        assert kept.read_bytes() == whole


def test_a_notice_stays_known_where_its_file_has_changed_and_was_not_read(
    place: Place, small_leaves: None
) -> None:
    notice = Notice("known_bad", "wrong")
    index = index_of(ENTRIES).with_notice(ENTRIES[0].path, notice)
    place.put(files_of(index))
    send_request(place).of_model("org/model-0")
    place.put(files_of(index.with_entry(entry_of(0, 1))))
    send_request(place).of_model("org/model-1")  # with the new root
    known = index_cache.last_notices(place.remote.url, "org/model-0")
    assert known == {ENTRIES[0].path: notice}
    assert index_cache.last_notices(place.remote.url, "org/model-3") == {}


@pytest.fixture(params=["hub", "folder"])
def url(request: pytest.FixtureRequest, alice: LocalHub, home: Path, tmp_path: Path) -> str:
    """Give a remote without an index, that is published to."""
    if request.param == "folder":
        return (tmp_path / "zoo").as_uri()
    alice.commit("alice/zoo", {".gitattributes": b"*.gz filter=lfs"})
    return "hf://alice/zoo"


def test_publication_is_one_commit_of_few_files(
    url: str, small_leaves: None, alice: LocalHub, tmp_path: Path
) -> None:
    before = None
    for entry in ENTRIES:
        publish(url, entry)
        snapshot = open_remote(url).snapshot()
        assert snapshot is not None
        # Who has read the root goes on reading.
        assert before is None or len(before.entries) + 1 == len(snapshot.index.entries)
        before = snapshot.index
    assert snapshot is not None
    assert files_of(snapshot.index) == {INDEX_NAME: files_of(index_of(ENTRIES))[INDEX_NAME]}
    assert snapshot.read("README.md", limit=99) == card(snapshot.index)
    publish_notice(url, ENTRIES[0].path, "known_bad", reason="wrong", model=ENTRIES[0].model)
    publish_notice(url, ENTRIES[1].path, "yanked", reason="typo")
    snapshot = open_remote(url).snapshot()
    assert snapshot is not None
    assert snapshot.index.notices.keys() == {ENTRIES[0].path, ENTRIES[1].path}
    if url.startswith("hf"):
        assert len(list(alice.models["alice/zoo"].history())) == 1 + len(ENTRIES) + 2
        there = {path for path in alice.files("alice/zoo") if path.startswith(f"{FOLDER_NAME}/")}
        assert there == {*stale_files(snapshot.index, Index())}


def test_stale_files_of_a_folder_stay_for_a_day(
    home: Path, small_leaves: None, tmp_path: Path
) -> None:
    url, folder = tmp_path.as_uri(), tmp_path / FOLDER_NAME
    for entry in ENTRIES:
        publish(url, entry)
    first = {*folder.iterdir()}
    os.utime(next(iter(first)), (1, 1))  # current, however old
    publish_notice(url, ENTRIES[0].path, "yanked", reason="typo")
    (new,) = {*folder.iterdir()} - first
    (stale,) = {*folder.glob(f"{new.name.partition('-')[0]}-*")} - {new}
    assert time.time() - stale.stat().st_mtime < 3600
    os.utime(stale, (1, 1))
    publish_notice(url, ENTRIES[0].path, "yanked", reason="another typo")
    assert not stale.exists()
    assert new.exists()
