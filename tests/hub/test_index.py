# SPDX-License-Identifier: Apache-2.0
import copy
import gzip
import hashlib
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_index import ENTRY, OTHER
from package_builder import SOURCE, SPEC, draft, program
from remote_builder import entry_of, index_in, make

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import entries
from qeff_zoo.hub.entries import Notice, axes_of, package_path, variant_name
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.index_files import decode, encode, files_of
from qeff_zoo.hub.index_tree import Leaf, divided


def plain(index: Index) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(encode(index)))
    return found


def packed(content: Any) -> bytes:
    return gzip.compress(json.dumps(content).encode(), mtime=0)


def test_index_is_unchanged_by_writing_and_reading() -> None:
    proved = replace(ENTRY, proof="Computes Hugging Face's model.")
    index = Index().with_entry(proved).with_entry(OTHER)
    index = index.with_notice(ENTRY.path, Notice("superseded", "wrong pooling", OTHER.path))
    assert decode(encode(index)) == index
    assert encode(decode(encode(index))) == encode(index)
    assert decode(encode(Index())) == Index()


def test_every_change_raises_the_serial_and_no_change_does_not() -> None:
    index = Index().with_entry(ENTRY)
    assert (index.serial, index.with_entry(ENTRY)) == (1, index)
    proved = replace(ENTRY, validated="device")
    assert index.with_entry(proved) == Index(2, Leaf((proved,)))
    yanked = index.with_notice(ENTRY.path, Notice("yanked", "typo"))
    assert (yanked.serial, yanked.with_notice(ENTRY.path, Notice("yanked", "typo"))) == (2, yanked)
    assert yanked.with_notice(ENTRY.path, None) == Index(3, Leaf((ENTRY,)))
    assert index.with_notice(ENTRY.path, None) is index


def test_packages_are_found_by_their_model() -> None:
    foreign = replace(OTHER, model="org/other")
    index = Index().with_entry(ENTRY).with_entry(foreign)
    assert index.of_model("org/tiny") == (ENTRY,)
    assert index.of_model("org/none") == ()
    assert index.models == ("org/other", "org/tiny")


def test_notice_is_about_packages_of_the_index() -> None:
    with pytest.raises(ValueError, match="not a package of the index"):
        Index().with_notice(ENTRY.path, Notice("yanked", "x"))
    with pytest.raises(ValueError, match="not a package of the index"):
        Index().with_entry(ENTRY).with_notice(ENTRY.path, Notice("superseded", "x", OTHER.path))


@pytest.mark.parametrize(
    ("state", "reason", "instead"),
    [
        ("gone", "x", None),
        ("yanked", "", None),
        ("yanked", "two\nlines", None),
        ("yanked", "\x1b[2Jcleared", None),
        ("superseded", "x", "../elsewhere"),
    ],
)
def test_notice_is_one_line_of_a_known_kind(state: str, reason: str, instead: str | None) -> None:
    with pytest.raises(ValueError, match="expected"):
        Notice(state, reason, instead)


def first(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Change what is said of the first package."""
    return lambda content: content["packages"][0].update(changes)


def axis(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["packages"][0]["axes"].update(changes)


def notice(path: str = ENTRY.path, **message: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["notices"].update(
        {path: {"state": "yanked", "reason": "x", **message}}
    )


FILE = {"sha256": "a" * 64, "packages": 1}
NOTICES = {ENTRY.path: {"state": "yanked", "reason": "x"}}

BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another schema": lambda c: c.update(schema="qeff-index/2"),
    "no schema": lambda c: c.pop("schema"),
    "prefix of a root": lambda c: c.update(prefix="01"),
    "prefix of other digits": lambda c: c.update(prefix="2"),
    "no serial": lambda c: c.pop("serial"),
    "files and packages": lambda c: c.update(files={"0": FILE}),
    "files and notices": lambda c: c.update(files={"0": FILE}, packages=[], notices=NOTICES),
    "file of no digest": lambda c: c.update(files={"0": {**FILE, "sha256": "a"}}, packages=[]),
    "file of no package": lambda c: c.update(files={"0": {**FILE, "packages": 0}}, packages=[]),
    "file without a prefix": lambda c: c.update(files={"": FILE}, packages=[]),
    "file of a path": lambda c: c.update(files={"../0": FILE}, packages=[]),
    "file that is far below": lambda c: c.update(files={"0" * 9: FILE}, packages=[]),
    "file below another": lambda c: c.update(files={"0": FILE, "01": FILE}, packages=[]),
    "another member": lambda c: c.update(extra=1),
    "a member less": lambda c: c.pop("notices"),
    "serial below zero": lambda c: c.update(serial=-1),
    "serial of text": lambda c: c.update(serial="1"),
    "serial of truth": lambda c: c.update(serial=True),
    "serial with a point": lambda c: c.update(serial=1e29),
    "serial out of sight": lambda c: c.update(serial=10**31),
    "path out of packages": first(path="packages/ort/../../../etc"),
    "path with a short key": first(path=ENTRY.path[:-1]),
    "path with one part more": first(path=f"{ENTRY.path}/a"),
    "path that hides": first(path="packages/.git/0123456789abcdef"),
    "path of two lines": first(path=f"{ENTRY.path}\n"),
    "digest of other letters": first(manifest="A" * 64),
    "digest of two lines": first(manifest="a" * 64 + "\n"),
    "size below zero": first(size=-1),
    "size of truth": first(size=True),
    "size beyond every disk": first(size=10**30),
    "time": first(finished="yesterday"),
    "level": first(validated="surely"),
    "signed by number": first(signed=1),
    "package with a member more": first(extra=1),
    "package with a member less": lambda c: c["packages"][0].pop("axes"),
    "package of text": lambda c: c.update(packages=["none"]),
    "packages of text": lambda c: c.update(packages="none"),
    "one package twice": lambda c: c["packages"].append(c["packages"][0]),
    "axis of an object": axis(deep={"a": 1}),
    "axis of nothing": axis(pooling=None),
    "axis that clears the screen": axis(weights="\x1b[2J"),
    "size that is no number": axis(ctx_len="abc"),
    "size that is a list": axis(ctx_len=[1, 2]),
    "lengths that are no numbers": axis(seq_lens=["abc"]),
    "lengths that are a number": axis(seq_lens=7),
    "no target": lambda c: c["packages"][0]["axes"].pop("target"),
    "too many axes": axis(**{f"axis{number}": 1 for number in range(65)}),
    "version of a number": first(needs={"onnxruntime": 1}),
    "model of two lines": first(model="a\nb"),
    "model of half a character": first(model="\ud800"),
    "model that is long": first(model="x" * 1001),
    "notice out of packages": notice("../x"),
    "notice of an unknown state": notice(state="gone"),
    "notice that leads out": notice(state="superseded", instead="/etc/passwd"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_malformed_index_is_refused(what: str) -> None:
    content = plain(Index().with_entry(ENTRY))
    assert decode(packed(content)).entries == (ENTRY,)  # as it was, it is read
    BROKEN[what](content)
    with pytest.raises(RemoteError, match=r"^The index ") as caught:
        decode(packed(content))
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        packed([]),
        gzip.compress(b"{"),
        gzip.compress(b"[" * 1_000_000),
        encode(Index())[:-9],
        encode(Index()) + b"more",
        encode(Index()) + encode(Index()),
        gzip.compress(b'{"schema":"qeff-index/3","schema":"qeff-index/3"}'),
        gzip.compress(json.dumps({**plain(Index()), "serial": 1e999}).encode()),
    ],
    ids=["nothing", "plain", "list", "cut JSON", "deep", "cut", "tail", "two", "twice", "infinity"],
)
def test_bytes_that_are_no_index_are_refused(content: bytes) -> None:
    with pytest.raises(RemoteError, match=r"^The index cannot be read"):
        decode(content)


def test_bomb_is_refused_before_it_grows() -> None:
    import tracemalloc

    writer = zlib.compressobj(wbits=31)
    head, again = (
        writer.compress(bytes(1 << 20)) + writer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    bomb = head + again * 1023  # 1 GiB, compressed once
    assert len(bomb) < 2 << 20
    tracemalloc.start()
    try:
        with pytest.raises(RemoteError, match="grows to more than"):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_index_of_ten_thousand_packages_takes_a_megabyte_in_small_files() -> None:
    draw = random.Random(0)
    entries = []
    for number in range(10_000):
        name = hashlib.sha256(str(number).encode()).hexdigest()
        axes = {
            "target": draw.choice(("ort", "qaic")),
            "weights": draw.choice(("fp32", "int8", "int4", "w8a8")),
            "ctx_len": draw.choice((2048, 4096, 8192, 16384, 32768)),
            "prefill_seq_len": draw.choice((128, 256)),
            "batch_size": 1,
            "full_batch_size": draw.choice((1, 4, 16)),
        }
        day, minute = draw.randint(10, 28), draw.randint(10, 59)
        finished = f"2026-{draw.randint(1, 12):02}-{day}T{draw.randint(10, 23)}:{minute}:{draw.randint(10, 59)}Z"
        entries.append(
            replace(
                ENTRY,
                path=f"packages/{variant_name(axes)}/{name[:16]}",
                manifest=hashlib.sha256(name.encode()).hexdigest(),
                model=f"org-{number % 20}/model-{number // 8}",
                revision=hashlib.sha1(str(number // 8).encode()).hexdigest(),
                size=draw.randrange(10**8, 10**11),
                finished=finished,
                axes=axes,
            )
        )
    index = Index(1, divided(Leaf(tuple(entries))))
    files = files_of(index)
    assert sum(map(len, files.values())) <= 1_150_000
    assert max(map(len, files.values())) <= 25_000
    found = {entry.path: entry for entry in index_in(files).entries}
    assert found == {entry.path: entry for entry in entries}


def test_entry_describes_its_package(tmp_path: Path) -> None:
    package = make(tmp_path / "package", ctx_len=2048)
    entry = entry_of(package)
    assert entry.path == package_path(package.manifest)
    assert entry.path.endswith(f"/{package.build_key[4:20]}")
    assert (
        entry.manifest
        == hashlib.sha256((tmp_path / "package/manifest.json").read_bytes()).hexdigest()
    )
    assert (entry.model, entry.model_type, entry.revision) == (
        "org/tiny",
        "llama",
        SOURCE["revision"],
    )
    assert (entry.size, entry.validated, entry.signed) == (package.size, "checkpoint", False)
    assert entry.axes["ctx_len"] == 2048
    assert entry.needs == {"onnxruntime": ">=1.31"}
    assert entry.tested == {"onnxruntime": package.programs[0].compiler["version"]}
    assert decode(encode(Index().with_entry(entry))).entries == (entry,)


def test_package_of_a_folder_has_its_name_for_a_model(tmp_path: Path) -> None:
    spec = copy.deepcopy(SPEC)
    spec["sources"]["model"] = {"weights": SOURCE["weights"]}
    entry = entry_of(make(tmp_path / "package", name="my-folder", spec=spec))
    assert (entry.model, entry.revision) == ("my-folder", None)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"weights": "int4"}, "ort-int4-pl128-cl4096-bs1"),
        ({"weights": "fp32", "full_batch_size": 16, "continuous_batching": True}, "ort-fp32-pl128-cl4096-fbs16"),
        ({"mxfp6": True, "num_slices": 16, "mxint8": False}, "ort-mxfp6-num_slices16-pl128-cl4096-bs1"),
        ({"weights": "fp32", "hw": "Ultra/2"}, "ort-fp32-ultra_2-pl128-cl4096-bs1"),
        ({"comp_ctx_lengths_decode": [1024, 4096]}, "ort-pl128-cl4096-bs1-ccd1024.4096"),
        ({"remark": "x" * 300}, f"ort-{'x' * 92}"),
    ],
)  # fmt: skip
def test_variant_is_readable(changes: dict[str, Any], name: str) -> None:
    axes = {
        "target": "ort",
        "task": "text-generation",
        "prefill_seq_len": 128,
        "ctx_len": 4096,
        "batch_size": 1,
    }
    assert variant_name({**axes, **changes}) == name


def test_every_group_of_the_spec_is_an_axis() -> None:
    spec = {
        **SPEC,
        "task": {"name": "feature-extraction", "pooling": "cls", "normalize": False},
        "shape": {"seq_lens": [32, 128], "batch_size": 8},
        "quantization": {"method": "none", "weights": "int8", "kv": "mxint8"},
        "target": {"name": "qaic", "num_cores": 16, "options": {"mxfp6": True}},
    }
    target = {"name": "qaic", "needs": {}}
    manifest = draft(spec=spec, task="feature-extraction", target=target)
    assert axes_of(manifest) == {
        "target": "qaic", "num_cores": 16, "options.mxfp6": True, "task": "feature-extraction", "pooling": "cls",
        "normalize": False, "method": "none", "weights": "int8", "kv": "mxint8", "seq_lens": [32, 128], "batch_size": 8,
    }  # fmt: skip


def test_versions_are_those_of_what_runs_and_compiled_it() -> None:
    spec = {**SPEC, "toolchain": {"torch": "2.13.0", "onnxruntime": "1.30.0"}}
    made = program()
    made["compiled_from"]["compiler"] = {"name": "qaic-compile", "version": "1.20.2"}
    found = entries.tested_versions(draft(spec=spec, programs=[made]))
    assert found == {"onnxruntime": "1.30.0", "qaic-compile": "1.20.2"}
    made["compiled_from"]["compiler"] = {"name": "onnxruntime", "version": "1.31.1"}
    found = entries.tested_versions(draft(spec=spec, programs=[made]))
    assert found == {"onnxruntime": "1.31.1"}
