# SPDX-License-Identifier: Apache-2.0
"""A host that gives other files of an index than the root names, and a signer whose files contradict the root."""

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_index import ENTRY
from signing_keys import KeyPair, make_pair

from qeff_zoo.errors import RemoteError, TrustError
from qeff_zoo.hub import index_tree
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import INDEX_LIMIT, SCHEMA_ID, encode, file_path, files_of
from qeff_zoo.hub.index_tree import Page, Reference, bits_of
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.hub.trust import index_signer

Attack = Callable[[Path, Index], object]


def numbered(number: int, **changes: Any) -> Entry:
    path = f"packages/ort-int4/{number:016x}"
    return replace(ENTRY, path=path, model=f"org/model-{number}", **changes)


#: The model that is asked for, in a file of its own, and two others.
VICTIM = numbered(0)
OTHERS = [numbered(1), numbered(2)]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_tree, "LEAF_PACKAGES", 1)


def index_of(*entries: Entry) -> Index:
    index = Index()
    for entry in entries:
        index = index.with_entry(entry)
    return index


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def name_of(index: Index, model: str = VICTIM.model) -> str:
    """Give the path of the file that lists a model, on the first page."""
    bits, names = bits_of(model), [path for path in files_of(index) if path != INDEX_NAME]
    (path,) = (path for path in names if bits.startswith(path.split("/")[1].partition("-")[0]))
    return path


@pytest.fixture
def index() -> Index:
    index = index_of(VICTIM, *OTHERS)
    return index.with_notice(VICTIM.path, Notice("known_bad", "wrong"))


@pytest.fixture
def zoo(tmp_path: Path, home: Path, index: Index) -> Path:
    write(tmp_path / "zoo", files_of(index))
    return tmp_path / "zoo"


def request(zoo: Path) -> Index:
    snapshot = open_remote(zoo.as_uri()).snapshot()
    assert snapshot is not None
    return snapshot.index


def test_an_index_in_several_files_is_read(zoo: Path, index: Index) -> None:
    assert request(zoo).of_model(VICTIM.model) == (VICTIM,)
    assert request(zoo).leaf_of(VICTIM.model).notices == index.notices
    assert {entry.path for entry in request(zoo).entries} == {e.path for e in (VICTIM, *OTHERS)}
    assert len([*(zoo / "index").iterdir()]) == 3


# --- the host ------------------------------------------------------------------------------------


def flipped(zoo: Path, index: Index) -> None:
    file = zoo / name_of(index)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def stale(zoo: Path, index: Index) -> None:
    """Give what the file had before the notice."""
    before = files_of(index_of(VICTIM, *OTHERS))
    (zoo / name_of(index)).write_bytes(before[name_of(index_of(VICTIM, *OTHERS))])


def newer(zoo: Path, index: Index) -> None:
    """Give a newer file than the root knows of."""
    later = index.with_entry(replace(VICTIM, validated="device"))
    (zoo / name_of(index)).write_bytes(files_of(later)[name_of(later)])


def foreign(zoo: Path, index: Index) -> None:
    other = index_of(replace(VICTIM, manifest="f" * 64), *OTHERS)
    (zoo / name_of(index)).write_bytes(files_of(other)[name_of(other)])


def swapped(zoo: Path, index: Index) -> None:
    other = (zoo / name_of(index, OTHERS[0].model)).read_bytes()
    (zoo / name_of(index)).write_bytes(other)


def packed_otherwise(zoo: Path, index: Index) -> None:
    file = zoo / name_of(index)
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()), compresslevel=1))


def rooted(zoo: Path, index: Index) -> None:
    (zoo / name_of(index)).write_bytes((zoo / INDEX_NAME).read_bytes())


def cut(zoo: Path, index: Index) -> None:
    file = zoo / name_of(index)
    file.write_bytes(file.read_bytes()[:-9])


HOSTS: dict[str, tuple[Attack, str]] = {
    "a flipped byte": (flipped, "was changed or swapped"),
    "an older file": (stale, "was changed or swapped"),
    "a newer file": (newer, "was changed or swapped"),
    "a file of another remote": (foreign, "was changed or swapped"),
    "a file of other models": (swapped, "was changed or swapped"),
    "other bytes of the same": (packed_otherwise, "was changed or swapped"),
    "the root": (rooted, "was changed or swapped"),
    "a part of it": (cut, "was changed or swapped"),
    "nothing": (lambda zoo, index: (zoo / name_of(index)).unlink(), "Cannot read 'index/"),
    "too many bytes": (
        lambda zoo, index: (zoo / name_of(index)).write_bytes(bytes(INDEX_LIMIT + 1)),
        f"more than {INDEX_LIMIT:,} bytes",
    ),
}


@pytest.mark.parametrize("attack", HOSTS)
def test_another_file_than_the_root_names_is_refused(zoo: Path, index: Index, attack: str) -> None:
    harm, message = HOSTS[attack]
    harm(zoo, index)
    with pytest.raises(RemoteError, match=message):
        request(zoo).of_model(VICTIM.model)
    with pytest.raises(RemoteError, match=message):
        _ = request(zoo).entries
    # What it has of others is as it was, and the file is read once it is right.
    assert request(zoo).of_model(OTHERS[0].model) == (OTHERS[0],)
    write(zoo, files_of(index))
    assert request(zoo).of_model(VICTIM.model) == (VICTIM,)


def test_an_older_root_is_refused_with_and_without_its_files(zoo: Path, index: Index) -> None:
    request(zoo)
    older = index_of(VICTIM, *OTHERS)
    for files in ({INDEX_NAME: files_of(older)[INDEX_NAME]}, files_of(older)):
        write(zoo, files)
        with pytest.raises(TrustError, match="rolled back"):
            request(zoo)


def test_another_root_of_the_same_serial_is_refused(zoo: Path, index: Index) -> None:
    request(zoo)  # the root alone, which has the digests of all
    other = index_of(replace(VICTIM, manifest="f" * 64), *OTHERS)
    write(zoo, files_of(replace(other, serial=index.serial)))
    with pytest.raises(TrustError, match="another one of the same serial"):
        request(zoo)


def test_files_of_several_publications_are_not_mixed(zoo: Path, index: Index) -> None:
    """Who gives the newest root cannot keep a model's newest file to himself."""
    later = index.with_entry(replace(VICTIM, validated="device"))
    (zoo / INDEX_NAME).write_bytes(files_of(later)[INDEX_NAME])
    with pytest.raises(RemoteError, match="Cannot read 'index/"):
        request(zoo).of_model(VICTIM.model)
    assert request(zoo).of_model(OTHERS[0].model) == (OTHERS[0],)


# --- the signature -------------------------------------------------------------------------------


def test_the_signature_over_the_root_is_over_all_files(
    zoo: Path, index: Index, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair: KeyPair = make_pair(tmp_path, "acme")
    settings = {"mode": "require", "keys": [str(pair.public)]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    with pytest.raises(TrustError, match="It is not signed"):
        request(zoo)
    named = replace(index, remotes=(zoo.as_uri(),))
    write(zoo, files_of(named, index_signer(pair.private)))
    assert request(zoo).of_model(VICTIM.model) == (VICTIM,)
    # Other files need another root, which nobody signed.
    other = replace(index_of(replace(VICTIM, manifest="f" * 64), *OTHERS), remotes=named.remotes)
    files = files_of(replace(other, serial=9))
    _, _, signature = gzip.decompress((zoo / INDEX_NAME).read_bytes()).partition(b"\n")
    text = gzip.decompress(files[INDEX_NAME])
    write(zoo, {**files, INDEX_NAME: gzip.compress(text + b"\n" + signature)})
    with pytest.raises(TrustError, match=r"over something else than this index\.json"):
        request(zoo)


# --- the signer ----------------------------------------------------------------------------------


ENTRY_JSON = json.loads(gzip.decompress(encode(index_of(VICTIM))))["packages"][0]
BIT = bits_of(VICTIM.model)[0]
OTHER_BIT = "10"[int(BIT)]
BELOW = {"sha256": "a" * 64, "packages": 1}
FINE = {"prefix": BIT, "packages": [ENTRY_JSON]}


def lying(folder: Path, content: dict[str, Any], packages: int, prefix: str, end: bytes) -> Index:
    """Give the index of a root that refers to one file, of this content."""
    text = json.dumps({"schema": SCHEMA_ID, "notices": {}, "files": {}, "packages": [], **content})
    data = gzip.compress(text.encode() + end)
    reference = Reference(hashlib.sha256(data).hexdigest(), packages)
    root = encode(Index(9, Page({prefix: reference})))
    write(folder, {INDEX_NAME: root, file_path(prefix, reference): data})
    return request(folder)


LIES: dict[str, tuple[dict[str, Any], int, str, bytes, str]] = {
    "a package less": (FINE, 2, BIT, b"", "has 1 packages, not 2"),
    "no package": ({**FINE, "packages": []}, 1, BIT, b"", "has 0 packages, not 1"),
    "a package twice": ({**FINE, "packages": [ENTRY_JSON] * 2}, 2, BIT, b"", "one path twice"),
    "another prefix": ({**FINE, "prefix": OTHER_BIT}, 1, BIT, b"", "a file of the prefix"),
    "a model astray": ({**FINE, "prefix": OTHER_BIT}, 1, OTHER_BIT, b"", "lists the model"),
    "a serial": ({**FINE, "serial": 1}, 1, BIT, b"", "or another root"),
    "a signature": (FINE, 1, BIT, b"\n{}", "or another root"),
    "a malformed package": ({**FINE, "packages": [{**ENTRY_JSON, "size": -1}]}, 1, BIT, b"", "size"),
    "both": ({**FINE, "files": {BIT + "0": BELOW}}, 1, BIT, b"", "lists files and packages"),
    "a page elsewhere": ({"prefix": BIT, "files": {OTHER_BIT * 2: BELOW}}, 1, BIT, b"", "on the page"),
    "itself": ({"prefix": BIT, "files": {BIT: BELOW}}, 1, BIT, b"", "on the page"),
    "a page of more": (
        {"prefix": BIT, "files": {BIT + "0": {**BELOW, "packages": 2}}}, 1, BIT, b"", "has 2 packages",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_contradicts_the_root_is_refused(tmp_path: Path, home: Path, lie: str) -> None:
    assert lying(tmp_path / "fine", FINE, 1, BIT, b"").of_model(VICTIM.model) == (VICTIM,)
    content, packages, prefix, end, message = LIES[lie]
    index = lying(tmp_path / "zoo", content, packages, prefix, end)
    with pytest.raises(RemoteError, match=message):
        _ = index.entries
