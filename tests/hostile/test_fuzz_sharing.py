# SPDX-License-Identifier: Apache-2.0
"""Whatever an index or a bundle says, reading it gives what can be used, or an error of ours, quickly."""

import copy
import gzip
import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures_index import ENTRY, OTHER
from fuzzing import CASES, SECONDS, changed, changes
from hypothesis import example, given
from hypothesis import strategies as st
from remote_builder import make

from qeff_zoo.errors import RemoteError, ZooError
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import decode, encode
from qeff_zoo.hub.index_tree import Page, Reference
from qeff_zoo.hub.publish.card import card
from qeff_zoo.hub.pull.bundle import export_bundle, import_bundle
from qeff_zoo.hub.resolve.choose import Candidate, Wanted, decide
from qeff_zoo.store import Store
from qeff_zoo.terminal.sanitize import shown

INDEX = (
    Index()
    .with_entry(ENTRY)
    .with_entry(OTHER)
    .with_notice(ENTRY.path, Notice("superseded", "slow", OTHER.path))
)
PLAIN = json.loads(gzip.decompress(encode(INDEX)))
WANTED = Wanted(
    axes={"ctx_len": 2048, "weights": "int4", "seq_lens": (16,), "batch_size": 1},
    preferred={"full_batch_size": 4, "on": True},
)
DAMAGE = st.none() | st.tuples(st.integers(0, 4000), st.binary(max_size=3))


def damaged(content: bytes, damage: tuple[int, bytes] | None) -> bytes:
    if damage is None:
        return content
    place, put = damage
    return content[:place] + put + content[place + 1 :]


def use(index: Index) -> None:
    """Do what is done with every index: choose from it, write it, and show it."""
    found = [Candidate(entry=entry) for entry in index.entries]
    for judged in decide(found, WANTED, index.notices, lambda tool: "1.31.1"):
        assert judged.difference == shown(judged.difference)
    assert decode(encode(index)) == index
    assert card(index, "hf://acme/zoo")


def read(content: bytes) -> None:
    begun, message = time.process_time(), ""
    try:
        index = decode(content)
    except RemoteError as error:
        message = str(error)
    else:
        use(index)
    assert len(message) < 4000
    assert message == shown(message)
    assert time.process_time() - begun < SECONDS


@CASES
@given(made=changes(PLAIN), text=DAMAGE, packed=DAMAGE)
@example(made=[(("packages", 0, "axes", "ctx_len"), "abc")], text=None, packed=None)
@example(made=[(("packages", 0, "axes", "seq_lens"), [])], text=None, packed=None)
@example(made=[(("packages", 0, "needs"), {"onnxruntime": "no version"})], text=None, packed=None)
@example(made=[(("packages", 0, "needs"), {"": ""})], text=None, packed=None)
@example(
    made=[(("notices",), {OTHER.path: {"state": "yanked", "reason": "x"}})], text=None, packed=None
)
@example(made=[(("serial",), 10**400)], text=None, packed=None)
def test_index(made: Any, text: tuple[int, bytes] | None, packed: tuple[int, bytes] | None) -> None:
    content = damaged(json.dumps(changed(PLAIN, made)).encode(), text)
    read(damaged(gzip.compress(content, mtime=0, compresslevel=1), packed))


PAGE = json.loads(
    gzip.decompress(
        encode(Index(1, Page({"0": Reference("a" * 64, 1), "10": Reference("b" * 64, 2)})))
    )
)


@CASES
@given(made=changes(PAGE), text=DAMAGE)
@example(made=[(("files",), {"0": PAGE["files"]["0"], "00": PAGE["files"]["0"]})], text=None)
@example(made=[(("files", "0", "packages"), 10**400)], text=None)
def test_page_of_an_index(made: Any, text: tuple[int, bytes] | None) -> None:
    content = damaged(json.dumps(changed(PAGE, made)).encode(), text)
    message = ""
    try:
        index = decode(gzip.compress(content, mtime=0, compresslevel=1))
    except RemoteError as error:
        message = str(error)
    else:
        assert decode(encode(index)) == index
        assert index.packages <= 2 * 10**16
    assert message == shown(message)


# --- bundles -------------------------------------------------------------------------------------

#: Bytes of a tar's header for each field: name, mode, size, checksum, type, link, magic.
_FIELDS = ((0, 100), (100, 8), (124, 12), (148, 8), (156, 1), (157, 100), (257, 8), (345, 155))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(folder / "home"))
        export_bundle([make(folder / "package")], folder / "zoo.tar")
    return (folder / "zoo.tar").read_bytes()


def headers(content: bytes) -> list[int]:
    """Return where the members of a tar begin."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return [member.offset for member in tar]


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, Any]:
    """Choose what to do to a bundle."""
    kind = draw(
        st.sampled_from(("header", "header", "bytes", "cut", "drop", "twice", "name", "index"))
    )
    if kind == "index":
        return kind, draw(changes(PLAIN))
    if kind == "name":
        name = st.sampled_from(("../x", "/etc/x", "a//b", ".", "packages", "x" * 300, INDEX_NAME))
        return kind, (draw(st.integers(0, 99)), draw(name | st.text(max_size=20)))
    return kind, (
        draw(st.integers(0, 1 << 20)),
        draw(st.integers(0, 99)),
        draw(st.binary(max_size=12)),
    )


def edited(content: bytes, kind: str, how: Any) -> bytes:
    """Return a bundle with something done to it; checksums of headers are right again."""
    starts = headers(content)
    if kind == "index":
        return repacked(content, index=changed(PLAIN, how))
    if kind == "name":
        return repacked(content, rename=(how[0] % len(starts), how[1]))
    place, which, put = how
    if kind == "cut":
        return content[: place % len(content)]
    if kind == "bytes":
        return damaged(content, (place % len(content), put))
    number = place % len(starts)
    bounds = [*starts, len(content)]
    member = content[bounds[number] : bounds[number + 1]]
    if kind == "drop":
        return content[: bounds[number]] + content[bounds[number + 1] :]
    if kind == "twice":
        return content[: bounds[number]] + member + content[bounds[number] :]
    start, length = _FIELDS[which % len(_FIELDS)]
    header = bytearray(member[:512])
    header[start : start + min(len(put), length)] = put[:length]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return content[: bounds[number]] + bytes(header) + content[bounds[number] + 512 :]


def repacked(content: bytes, *, index: Any = None, rename: tuple[int, str] | None = None) -> bytes:
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as old,
        tarfile.open(fileobj=made, mode="w") as tar,
    ):
        for number, member in enumerate(old):
            file = old.extractfile(member)
            data = file.read() if file else b""
            if index is not None and member.name == INDEX_NAME:
                data = gzip.compress(json.dumps(index).encode(), compresslevel=1)
            changed_member = copy.copy(member)
            changed_member.size = len(data)
            if rename and rename[0] == number:
                changed_member.name = rename[1]
            tar.addfile(changed_member, io.BytesIO(data))
    return made.getvalue()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@CASES
@given(edit=edits())
@example(edit=("cut", (0, 0, b"")))
@example(edit=("name", (0, "\ud800")))
def test_bundle(bundle: bytes, store: Store, tmp_path: Path, edit: tuple[str, Any]) -> None:
    path = tmp_path / "zoo.tar"
    try:
        path.write_bytes(edited(bundle, *edit))
    except ValueError:
        return  # a name that no tar can hold
    begun, message = time.process_time(), ""
    try:
        for pulled in import_bundle(path, store):
            assert pulled.package.verify() == []
    except ZooError as error:
        message = str(error)
    assert len(message) < 4000
    assert time.process_time() - begun < SECONDS
    assert [found.name for found in tmp_path.iterdir()] == ["zoo.tar"]
