# SPDX-License-Identifier: Apache-2.0
import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import TINY_LLAMA
from fixtures_index import ENTRY
from local_hub import LocalHub
from package_builder import SOURCE, SPEC, made_from
from remote_builder import make, remote, write_remote

from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import main
from qeff_zoo.errors import PlanError, RemoteError, ResolutionError, TrustError
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.naming import short_name
from qeff_zoo.hub.resolve import axes, require, resolve
from qeff_zoo.hub.resolve.choose import Candidate, Wanted, decide, doubts, obstacles
from qeff_zoo.hub.resolve.lookup import commit_of
from qeff_zoo.package import Package
from qeff_zoo.store import Store

AXES: dict[str, Any] = {
    "target": "ort", "task": "text-generation", "weights": "fp32",
    "prefill_seq_len": 128, "ctx_len": 4096, "batch_size": 1,
}  # fmt: skip
INSTALLED = {"onnxruntime": "1.31.1"}


def entry(number: int = 0, **changes: Any) -> Entry:
    """Make an entry; what is no field of it is an axis, None for none."""
    fields = {name: changes.pop(name) for name in list(changes) if hasattr(ENTRY, name)}
    found = {name: value for name, value in {**AXES, **changes}.items() if value is not None}
    return replace(ENTRY, path=f"packages/v/{number:016x}", axes=found, **fields)


def order(
    entries: Iterable[Entry], notices: dict[str, Notice] | None = None, **wanted: Any
) -> list[Candidate]:
    return decide(
        [Candidate(entry=entry) for entry in entries],
        Wanted(**wanted),
        notices or {},
        INSTALLED.get,
    )


def numbers(candidates: Iterable[Candidate]) -> list[int]:
    """Give which entries will do, the best first."""
    return [int(candidate.entry.key16, 16) for candidate in candidates if not candidate.refused]


# What will do


@pytest.mark.parametrize(
    ("axis", "asked", "found", "reason"),
    [
        ("target", "ort", "ort", None),
        ("target", "ort", "qaic", "target is qaic, asked for ort"),
        ("weights", "int4", "int4", None),
        ("weights", "int4", "fp32", "weights is fp32, asked for int4"),
        ("weights", "int4", None, "weights does not apply to it, asked for int4"),
        ("block_size", 64, 64, None),
        ("block_size", 64, 32, "block_size is 32, asked for 64"),
        ("block_size", 64, None, "block_size does not apply to it, asked for 64"),
        ("kv", "mxint8", "fp16", "kv is fp16, asked for mxint8"),
        ("num_cores", 14, 16, "num_cores is 16, asked for 14"),
        ("num_cores", 16, 14, "num_cores is 14, asked for 16"),
        ("num_devices", 1, 4, "num_devices is 4, asked for 1"),
        ("mxfp6_matmul", True, True, None),
        ("mxfp6_matmul", False, None, None),
        ("mxfp6_matmul", True, None, "mxfp6_matmul does not apply to it, asked for on"),
        ("mxfp6_matmul", False, True, "mxfp6_matmul is on, asked for off"),
        ("pooling", "cls", "mean", "pooling is mean, asked for cls"),
        ("normalize", True, False, "normalize is off, asked for on"),
        ("ctx_len", 4096, 4096, None),
        ("ctx_len", 4096, 8192, None),
        ("ctx_len", 4096, 2048, "ctx_len is 2048, asked for at least 4096"),
        ("ctx_len", 4096, None, "ctx_len does not apply to it, asked for at least 4096"),
        ("full_batch_size", 4, 16, None),
        ("full_batch_size", 16, 4, "full_batch_size is 4, asked for at least 16"),
        ("batch_size", 1, 8, None),
        ("batch_size", 8, 1, "batch_size is 1, asked for at least 8"),
        ("seq_lens", (32, 128), [32, 128, 256, 512], None),
        ("seq_lens", (128,), [128], None),
        ("seq_lens", (32, 512), [32, 128, 256], "seq_lens is 256, asked for at least 512"),
        ("prefill_seq_len", 256, 128, None),
        ("prefill_seq_len", 32, 128, None),
        ("comp_ctx_lengths_decode", (512,), None, None),
        ("options", (1, 2), [1, 2], None),
        ("options", (1, 2), [2, 1], "options is 2,1, asked for 1,2"),
    ],
)
def test_acceptable_packages_in_place_of_the_requested_one(
    axis: str, asked: Any, found: Any, reason: str | None
) -> None:
    assert axes.refusal(axis, asked, found) == reason


@pytest.mark.parametrize(
    "axis", [name for name in axes.RULES if axes.rule_of(name).kind == "at least"]
)
def test_a_size_will_do_just_if_it_is_enough(axis: str) -> None:
    for requested in range(1, 6):
        for found in range(1, 6):
            assert (axes.refusal(axis, requested, found) is None) is (found >= requested)
            assert axes.excess(axis, requested, found) == max(0, found - requested)
            assert (axes.lack(axis, requested, found) > 0) is (found < requested)


# Which is the best


def test_least_that_is_enough_is_taken() -> None:
    entries = [entry(n, ctx_len=size) for n, size in enumerate((2048, 16384, 8192, 4096, 32768))]
    assert numbers(order(entries, axes={"ctx_len": 4000})) == [3, 2, 1, 4]
    assert numbers(order(entries, axes={"ctx_len": 8192})) == [2, 1, 4]
    slots = [entry(n, full_batch_size=size) for n, size in enumerate((16, 4, 8))]
    assert numbers(order(slots, axes={"full_batch_size": 3})) == [1, 2, 0]


def test_context_comes_before_slots_and_slots_before_speed() -> None:
    entries = [
        entry(0, ctx_len=8192, full_batch_size=4, prefill_seq_len=256),
        entry(1, ctx_len=4096, full_batch_size=8, prefill_seq_len=128),
        entry(2, ctx_len=4096, full_batch_size=8, prefill_seq_len=256),
        entry(3, ctx_len=4096, full_batch_size=4, prefill_seq_len=128),
    ]
    requested = {"prefill_seq_len": 256, "full_batch_size": 4, "ctx_len": 4096}
    assert numbers(order(entries, axes=requested)) == [3, 2, 1, 0]


def test_of_equals_the_better_proved_is_taken_and_then_the_newer() -> None:
    entries = [
        entry(0, validated="tiny", finished="2026-12-31T00:00:00Z"),
        entry(1, validated="device", finished="2026-01-01T00:00:00Z"),
        entry(2, validated="checkpoint", finished="2026-02-01T00:00:00Z"),
        entry(3, validated="checkpoint", finished="2026-03-01T00:00:00Z"),
    ]
    assert numbers(order(entries)) == [1, 3, 2, 0]


def test_omitted_options_resolve_to_the_defaults_of_a_build() -> None:
    preferred = {
        "target": "ort",
        "weights": "fp32",
        "ctx_len": 4096,
        "prefill_seq_len": 128,
        "full_batch_size": None,
    }
    entries = [
        entry(0, target="qaic"),
        entry(1, weights="int4"),
        entry(2, ctx_len=8192),
        entry(3, full_batch_size=16),
        entry(4),
        entry(5, prefill_seq_len=256),
    ]
    assert numbers(order(entries, preferred=preferred)) == [4, 3, 5, 2, 1, 0]
    requested = {"ctx_len": 3000, "weights": "int4"}
    assert numbers(order(entries, axes=requested, preferred=preferred)) == [1]


def test_a_longer_context_is_nearer_than_another_target() -> None:
    entries = [entry(0, target="qaic", ctx_len=4096), entry(1, ctx_len=32768)]
    assert numbers(order(entries, axes={"ctx_len": 4096}, preferred={"target": "ort"})) == [1, 0]


def test_package_here_is_taken_before_its_equal_elsewhere(tmp_path: Path) -> None:
    there, here = Candidate(entry=entry(1)), Candidate(entry=entry(2), here=tmp_path)
    for given in ([there, here], [here, there]):
        assert decide(given, Wanted(), {}, INSTALLED.get)[0].entry is here.entry


def test_every_reason_is_given_and_the_nearest_comes_first() -> None:
    entries = [
        entry(0, target="qaic", ctx_len=8192, weights="int4"),
        entry(1, ctx_len=1024, weights="int4"),
        entry(2, ctx_len=2048, weights="int4"),
        entry(3, weights="int8", ctx_len=8192),
    ]
    found = order(entries, axes={"target": "ort", "weights": "int4", "ctx_len": 4096})
    assert [int(one.entry.key16, 16) for one in found] == [2, 1, 3, 0]
    assert [one.difference for one in found] == [
        "ctx_len is 2048, asked for at least 4096",
        "ctx_len is 1024, asked for at least 4096",
        "weights is int8, asked for int4",
        "target is qaic, asked for ort",
    ]
    both = order([entry(0, weights="int8", ctx_len=1)], axes={"weights": "int4", "ctx_len": 2})
    assert [refusal.axis for refusal in both[0].refused] == ["weights", "ctx_len"]


# Revisions, keys and notices


def test_revision_is_exact_or_any() -> None:
    old, new = "a" * 40, "b" * 40
    entries = [
        entry(0, revision=old, finished="2026-01-01T00:00:00Z"),
        entry(1, revision=new, finished="2026-02-01T00:00:00Z"),
        entry(2, revision=None, finished="2026-03-01T00:00:00Z"),
    ]
    assert numbers(order(entries)) == [2, 1, 0]
    assert numbers(order(entries, revision=old)) == [0]
    assert numbers(order(entries, revision="bbbbbbb")) == [1]
    assert (
        order([entries[2]], revision=old)[0].difference == f"revision is not known, asked for {old}"
    )


def test_key_names_one_package() -> None:
    entries = [entry(1 << 32), entry(2 << 32)]
    path, key16 = entries[1].path, entries[1].key16
    short = short_name(path)
    assert short == f"v · {key16[:8]}"
    names = (
        path,
        key16,
        f"qz1-{key16}{'0' * 48}",
        key16[:8],
        f"qz1-{key16[:8]}",
        short,
        f"v/{key16}",
    )
    for key in (*names, short.replace(" ", ""), f"v/{key16[:8]}"):
        assert numbers(order(entries, key=key)) == [2 << 32]
    for key in (key16[:7], f"w/{key16}", f"{key16[:-1]}f", f"{key16}x", "qz1-", "v/", " · ", "w"):
        assert numbers(order(entries, key=key)) == []
    assert numbers(order(entries, key="v")) == [1 << 32, 2 << 32]  # `resolve` asks for one
    assert numbers(order(entries, key=key16, axes={"ctx_len": 9999})) == []


def test_of_several_gguf_files_the_one_that_is_named_is_meant() -> None:
    entries = [entry(n, gguf_file=f"model-{n}.gguf") for n in range(3)]
    found = order([*entries, entry(3)], axes={"gguf_file": "model-1.gguf"})
    assert numbers(found) == [1]
    assert "gguf_file is model-0.gguf, asked for model-1.gguf" in {one.difference for one in found}


def test_notices_are_heeded() -> None:
    entries = [entry(n) for n in range(4)]
    notices = {
        entries[0].path: Notice("yanked", "wrong tokenizer."),
        entries[1].path: Notice("known_bad", "wrong answers"),
        entries[2].path: Notice("superseded", "slow", entries[3].path),
    }
    found = order(entries, notices)
    assert numbers(found) == [3, 2]
    assert found[1].warnings == (f"It is superseded: slow (take {short_name(entries[3].path)}).",)
    assert {one.difference for one in found[2:]} == {
        "yanked: wrong tokenizer",
        "known bad: wrong answers",
    }
    pinned = order(entries, notices, key=entries[0].key16)
    assert (numbers(pinned), pinned[0].warnings) == ([0], ("It is yanked: wrong tokenizer.",))
    assert numbers(order(entries, notices, key=entries[1].key16)) == []
    assert numbers(order(entries[2:3], notices)) == [2]  # there is no other


# Versions


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (">=1.31", None),
        (">=1.31.1,<2", None),
        ("", None),
        (">=1.32", "tool is 1.31.1, it needs >=1.32"),
        ("~=1.30.0", "tool is 1.31.1, it needs ~=1.30.0"),
        ("~>1.31", "tool is 1.31.1, and what it needs cannot be compared: ~>1.31"),
    ],
)
def test_tool_of_another_version_is_in_the_way(wanted: str, reason: str | None) -> None:
    found = dict(obstacles({"tool": wanted}, {"tool": "1.31.1"}.get))
    assert found.get("tool") == reason
    assert not list(
        obstacles({"tool": wanted}, lambda _: None)
    )  # what is not here cannot be compared


def test_unknown_values_are_reported() -> None:
    needs, tested = {"onnxruntime": ">=1.31"}, {"onnxruntime": "1.31.1+cpu", "compiler": "3"}
    assert list(doubts(needs, tested, {"onnxruntime": "1.31.1"}.get)) == []
    assert list(doubts(needs, tested, {"onnxruntime": "1.32.0"}.get)) == [
        "It was tested with onnxruntime 1.31.1+cpu, and 1.32.0 is installed."
    ]
    assert list(doubts(needs, tested, lambda _: None)) == [
        "It needs onnxruntime >=1.31, which is not installed here, so that this was not checked."
    ]


def test_versions_refuse_and_warn() -> None:
    entries = [
        entry(0, needs={"onnxruntime": ">=2"}),
        entry(1, tested={"onnxruntime": "1.31.0"}),
        entry(2, needs={"apps-sdk": ">=1.20"}, tested={"apps-sdk": "1.20.2"}),
        entry(3, validated="none"),
        entry(4, finished="2020-01-01T00:00:00Z"),
    ]
    found = {int(one.entry.key16, 16): one for one in order(entries)}
    assert next(iter(found)) == 4  # without a warning before newer ones with one
    assert found[0].refused[0].axis == "onnxruntime"
    assert found[1].warnings == ("It was tested with onnxruntime 1.31.0, and 1.31.1 is installed.",)
    assert "apps-sdk >=1.20, which is not installed here" in found[2].warnings[0]
    assert found[3].warnings == ("It was not compared with the Hugging Face model.",)
    assert found[4].warnings == ()


# The whole of it


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch, home: Path, hub: LocalHub) -> Callable[..., None]:
    """Give a function that sets which remotes are asked; none at first."""
    for name in ("QEFF_ZOO_STORES", "QEFF_ZOO_OFFLINE", "QEFF_ZOO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent / "no-config"))
    return lambda *urls: monkeypatch.setenv("QEFF_ZOO_STORES", " ".join(urls))


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return make(tmp_path / "package")


def keep(package: Package) -> Package:
    """Put a package into the store."""
    store = Store()
    with store.stage("test") as folder:
        shutil.copytree(package.path, folder, dirs_exist_ok=True)
        return store.promote(folder, package.build_key)


def test_package_of_a_remote_is_used(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    stores(write_remote(tmp_path / "zoo", package))
    found = resolve("org/tiny", {"ctx_len": 2048, "weights": None})
    assert (found.verdict, found.exit_code, found.model) == ("USE", 0, "org/tiny")
    assert found.entry is not None
    assert found.snapshot is not None
    assert found.snapshot.read(f"{found.entry.path}/manifest.json", limit=1 << 20)
    assert (found.here, found.warnings, require(found)) == (None, (), found.chosen)


def test_package_of_the_store_is_used_without_network(
    stores: Callable[..., None],
    hub: LocalHub,
    package: Package,
    no_waiting: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = keep(package)
    hub.fault("GET", "/", status=503, times=1000)
    found = resolve("org/tiny", {"ctx_len": 4096})
    assert (found.verdict, found.here) == ("USE", kept.path)
    assert "503" in found.notes[0]
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    hub.log.clear()
    assert resolve("org/tiny").here == kept.path
    assert hub.log == []


def test_one_build_in_the_store_and_at_a_remote_is_one_candidate(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    stores(write_remote(tmp_path / "zoo", package))
    kept = keep(package)
    (candidate,) = resolve("org/tiny").candidates
    assert (candidate.here, candidate.remote) == (kept.path, (tmp_path / "zoo").as_uri())


def test_better_proved_package_of_the_same_build_is_pulled(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    stores(write_remote(tmp_path / "zoo", package))
    keep(make(tmp_path / "unproved", validated="none", validation=[]))
    (candidate,) = resolve("org/tiny").candidates
    assert (candidate.here, candidate.entry.validated) == (None, "checkpoint")


def test_damaged_package_of_the_store_is_no_candidate(
    stores: Callable[..., None], package: Package
) -> None:
    kept = keep(package)
    (kept.path / "model.onnx").unlink()
    assert resolve("org/tiny").candidates == ()


def test_first_remote_that_has_the_model_is_the_only_one(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    long = make(tmp_path / "long", ctx_len=8192)
    other = of_other(tmp_path / "other")
    urls = [
        f"opt+{(tmp_path / 'empty').as_uri()}",
        write_remote(tmp_path / "a", other),
        write_remote(tmp_path / "b", package),
        write_remote(tmp_path / "c", long),
    ]
    stores(*urls)
    found = resolve("org/tiny")
    assert [candidate.remote for candidate in found.candidates] == [urls[2]]
    assert found.notes == (
        f"{urls[0].removeprefix('opt+')} has no index.",
        f"{urls[1]} has no package of it.",
    )
    found = resolve("org/tiny", {"ctx_len": 8192})
    assert found.verdict == "FAIL"
    assert found.difference == "ctx_len is 4096, asked for at least 8192"


def test_remote_that_does_not_answer_is_not_passed_over(
    stores: Callable[..., None], tmp_path: Path, package: Package, no_waiting: None
) -> None:
    stores("http://127.0.0.1:1/zoo", write_remote(tmp_path / "zoo", package))
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:1"):
        resolve("org/tiny")
    kept = keep(package)
    assert resolve("org/tiny").here == kept.path


def test_rolled_back_index_stops_everything(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    stores(write_remote(tmp_path / "zoo", package))
    keep(package)
    (tmp_path / "zoo" / INDEX_NAME).write_bytes(encode(Index(9)))
    resolve("org/tiny")
    (tmp_path / "zoo" / INDEX_NAME).write_bytes(encode(Index(8)))
    with pytest.raises(TrustError, match="rolled back"):
        resolve("org/tiny")


def test_repository_of_packages_is_named_like_a_model(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path, package: Package
) -> None:
    first = hub.commit("acme/tiny-qpc", remote(package))
    hub.commit("acme/tiny-qpc", remote(package, make(tmp_path / "long", ctx_len=8192)))
    keep(make(tmp_path / "short", ctx_len=1024))  # of the model, but not what was named
    found = resolve("acme/tiny-qpc")
    assert (found.verdict, found.model, len(found.candidates)) == ("USE", "org/tiny", 2)
    (candidate,) = resolve(f"acme/tiny-qpc@{first}").candidates
    assert candidate.remote == f"hf://acme/tiny-qpc@{first}"
    assert len(resolve("hf://acme/tiny-qpc").candidates) == 2


def test_repository_of_the_model_itself_comes_last(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path, package: Package
) -> None:
    hub.commit("org/tiny", remote(package))
    assert resolve("org/tiny").verdict == "USE"
    stores(write_remote(tmp_path / "zoo", make(tmp_path / "long", ctx_len=8192)))
    assert [candidate.entry.axes["ctx_len"] for candidate in resolve("org/tiny").candidates] == [
        8192
    ]


def test_remote_of_several_models_requires_one(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    url = write_remote(tmp_path / "zoo", package, of_other(tmp_path / "other"))
    with pytest.raises(ResolutionError, match=r"2 models: org/other, org/tiny\. Expected one"):
        resolve(url)
    stores(url)
    assert resolve("org/other").verdict == "USE"


def test_remote_that_is_named_is_the_only_one(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path, package: Package
) -> None:
    long, other = make(tmp_path / "long", ctx_len=8192), of_other(tmp_path / "other")
    stores("http://127.0.0.1:1/not-asked", write_remote(tmp_path / "zoo", package))
    keep(make(tmp_path / "short", ctx_len=1024))
    hub.commit("acme/zoo", remote(long, other))
    url = write_remote(tmp_path / "second", long, other)
    for named in ("acme/zoo", "acme/zoo@main", "hf://acme/zoo", url):
        found = resolve("org/tiny", remote=named)
        assert [candidate.entry.axes["ctx_len"] for candidate in found.candidates] == [8192]
    found = resolve("org/third", remote=url)
    assert (found.candidates, found.notes) == (
        (),
        (f"{url} has packages of 2 models: org/other, org/tiny.",),
    )
    with pytest.raises(RemoteError, match=r"second/none has no index\. Expected a remote"):
        resolve("org/tiny", remote=f"{url}/none")
    with pytest.raises(RemoteError, match="names no remote"):
        resolve("org/tiny", remote="./zoo")


def of_other(folder: Path) -> Package:
    return make(folder, spec=made_from({**SOURCE, "model_id": "org/other"}))


def test_key_selects_one_of_several_models(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path, package: Package
) -> None:
    other = of_other(tmp_path / "other")
    url = write_remote(tmp_path / "zoo", package, other)
    hub.commit("acme/zoo", remote(package, other))
    for reference in (url, "acme/zoo"):
        for made, model in ((package, "org/tiny"), (other, "org/other")):
            found = resolve(reference, key=made.build_key[4:12])
            assert found.entry is not None
            assert (found.model, found.entry.key16) == (model, made.build_key[4:20])
        variant = "ort-int4-pl128-cl4096-bs1"
        with pytest.raises(ResolutionError, match="names 2 packages") as caught:
            resolve(reference, key=variant)
        assert f"  org/other {variant} · {other.build_key[4:12]}" in str(caught.value)
        for key in (None, "0" * 8):
            with pytest.raises(ResolutionError, match=f"with `--from {reference}`, or the key"):
                resolve(reference, key=key)


def test_name_of_several_packages_is_refused_with_all_of_them(
    stores: Callable[..., None],
    tmp_path: Path,
    package: Package,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = write_remote(tmp_path / "zoo", package)
    entries = [entry(0x12345678 << 32 | n, model="org/tiny") for n in range(2)]
    index = Index().with_entry(entries[0]).with_entry(entries[1])
    (tmp_path / "zoo" / INDEX_NAME).write_bytes(encode(index))
    stores(url)
    for argv in (
        ["resolve", "org/tiny", "--key", "12345678"],
        ["resolve", url, "--key", "12345678"],
        ["yank", url, "12345678", "--reason", "x"],
        ["yank", url, entries[0].key16, "--reason", "x", "--superseded-by", "v"],
    ):
        assert main(argv) == 1
        assert "names 2 packages. Expected one. Give the key" in capsys.readouterr().err
    assert resolve("org/tiny", key=entries[1].key16).verdict != "FAIL"


def test_packages_of_a_remote_are_listed(
    stores: Callable[..., None],
    tmp_path: Path,
    package: Package,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = of_other(tmp_path / "other")
    url = write_remote(tmp_path / "zoo", package, other)
    assert main(["yank", url, other.build_key[4:12], "--reason", "wrong tokenizer"]) == 0
    kept = keep(package)
    capsys.readouterr()
    assert main(["ls", url]) == 0
    shown = capsys.readouterr().out.splitlines()
    names = [f"ort-int4-pl128-cl4096-bs1 · {each.build_key[4:12]}" for each in (other, package)]
    assert shown[0].split() == ["model", "package", "size", "validated", "signed", "status"]
    assert [re.split(r" {2,}", line) for line in shown[2:]] == [
        ["org/other", names[0], "16.7 kB", "checkpoint", "no", "yanked: wrong tokenizer"],
        ["org/tiny", names[1], "16.7 kB", "checkpoint", "no", "here"],
    ]
    assert main(["ls", url, "org/tiny", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["model"], listed["here"], listed["notice"]) == ("org/tiny", str(kept.path), None)
    assert listed["path"].endswith(package.build_key[4:20])
    assert main(["ls", url, "org/third"]) == 1
    assert "has packages of 2 models: org/other, org/tiny." in capsys.readouterr().err


def test_remote_without_packages_or_index_is_reported(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path, no_waiting: None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / INDEX_NAME).write_bytes(encode(Index()))
    for name in ("no-index", "secret", "unsure"):
        hub.commit(f"acme/{name}", {"config.json": b"{}"})
    hub.models["acme/secret"].private = True
    hub.fault("GET", "/api/models/acme/unsure", status=503, times=100)
    for remote_url, code, output in (
        (tmp_path.as_uri(), 0, "has no packages"),
        (f"{tmp_path.as_uri()}/none", 1, "has no index"),
        ("acme/no-index", 1, "hf://acme/no-index has no index"),
        ("acme/typo", 1, "The Hub has no repository 'acme/typo', or it is private"),
        ("acme/secret", 1, "The Hub has no repository 'acme/secret', or it is private"),
        ("acme/unsure", 1, "hf://acme/unsure has no index"),
    ):
        assert main(["ls", remote_url]) == code
        out, err = capsys.readouterr()
        assert (out, output in err) == ("", True)


def test_url_must_answer(stores: Callable[..., None], no_waiting: None) -> None:
    with pytest.raises(RemoteError):
        resolve("http://127.0.0.1:1/zoo")
    with pytest.raises(RemoteError, match="names no remote"):
        resolve("s3://bucket")


def test_nothing_that_will_do_can_be_built_or_not(
    stores: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(TINY_LLAMA)
    found = resolve(folder, {"ctx_len": 64})
    assert (found.verdict, found.exit_code, found.problems) == ("BUILD", 10, ())
    with pytest.raises(ResolutionError, match="qeff-zoo build"):
        require(found)
    found = resolve(folder, {"weights": "int3"})
    assert (found.verdict, found.exit_code) == ("FAIL", 20)
    assert "--weights is 'int3'" in found.problems[0]
    found = resolve(folder, {"num_slices": 16})
    assert (found.verdict, found.problems) == (
        "FAIL",
        ("A build here knows no num_slices. Leave it out.",),
    )
    found = resolve("org/absent")
    assert (found.verdict, len(found.problems)) == ("FAIL", 1)
    with pytest.raises(ResolutionError, match="There is no package of 'org/absent'"):
        require(found)


def test_unknown_key_is_not_built(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    stores(write_remote(tmp_path / "zoo", package))
    assert resolve("org/tiny", key=package.build_key).verdict == "USE"
    found = resolve("org/tiny", key="qz1-" + "0" * 64)
    assert (found.verdict, found.problems[0][:24]) == ("FAIL", "No package has the key '")
    found = resolve("org/tiny", {"ctx_len": 8192}, key=package.build_key)
    assert found.problems[0].endswith("will not do: ctx_len is 4096, asked for at least 8192.")


def test_nearest_to_a_key_is_the_package_of_that_key() -> None:
    entries = [entry(1, weights="int8", target="qaic", ctx_len=1), entry(2)]
    found = order(
        entries, key=entries[0].key16, axes={"weights": "fp32", "target": "ort", "ctx_len": 9}
    )
    assert found[0].entry == entries[0]


def test_package_of_a_folder_is_found_by_what_is_in_it(
    stores: Callable[..., None], tmp_path: Path
) -> None:
    example = TINY_LLAMA
    for name in ("one", "two"):
        shutil.copytree(example, tmp_path / name)
    opened = open_checkpoint(str(tmp_path / "one"))
    source = {
        "weights": opened.weights_digest(Store().file_digest),
        "companions": opened.companions_digest(),
    }
    checks = [{**make(tmp_path / "any").manifest["validation"][0]}]
    checks[0]["against"] = {**checks[0]["against"], "revision": None}
    kept = keep(make(tmp_path / "p", name="one", spec=made_from(source), validation=checks))
    assert resolve(str(tmp_path / "one"), {"ctx_len": 64}).here == kept.path
    assert resolve(str(tmp_path / "two"), {"ctx_len": 64}).here == kept.path
    assert resolve("one").here == kept.path
    config = tmp_path / "one" / "tokenizer_config.json"
    config.write_text(config.read_text() + "\n")  # of the same name, and another checkpoint
    assert resolve(str(tmp_path / "one"), {"ctx_len": 64}).verdict == "BUILD"


def test_profile_is_a_wish_for_its_slots_and_else_a_preference(
    stores: Callable[..., None], tmp_path: Path, package: Package
) -> None:
    spec = copy.deepcopy(SPEC)
    spec["shape"] |= {"full_batch_size": 16, "ctx_len": 2048}
    slots = make(
        tmp_path / "slots",
        spec={**spec, "task": {"name": "text-generation", "continuous_batching": True}},
    )
    stores(write_remote(tmp_path / "zoo", package, slots))
    for requested, size in (
        ({}, None), ({"profile": "throughput"}, 16), ({"batch_size": 1}, None), ({"full_batch_size": 9}, 16),
    ):  # fmt: skip
        found = resolve("org/tiny", requested)
        assert found.entry is not None
        assert found.entry.axes.get("full_batch_size") == size
    with pytest.raises(PlanError, match="--profile is 'no'"):
        resolve("org/tiny", {"profile": "no"})


def test_revision_may_be_a_branch(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path
) -> None:
    commit = hub.commit("org/tiny", {"config.json": b"{}"})
    spec = made_from({**SOURCE, "revision": commit})
    checks = [{**make(tmp_path / "any").manifest["validation"][0]}]
    checks[0]["against"] = {**checks[0]["against"], "revision": commit}
    stores(write_remote(tmp_path / "zoo", make(tmp_path / "new", spec=spec, validation=checks)))
    assert resolve("org/tiny", revision="main").verdict == "USE"
    assert resolve("org/tiny", revision=commit).verdict == "USE"
    hub.commit("org/tiny", {"config.json": b"{ }"})
    found = resolve("org/tiny", revision="main")
    assert (found.chosen, found.difference[:14]) == (None, f"revision is {commit[:2]}")
    with pytest.raises(ResolutionError, match="no-such"):
        resolve("org/tiny", revision="no-such")
    assert resolve("org/tiny", revision=commit[:7]).verdict == "USE"


def test_a_tag_of_hex_digits_is_no_commit(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.commit("org/tiny", {"config.json": b"{}"})
    requested = []

    def model_info(_: Any, model: str, *, revision: str) -> Any:
        requested.append(revision)
        return SimpleNamespace(sha=commit)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    for revision in ("20240620", "deadbeef", commit):
        assert commit_of("org/tiny", revision) == commit
    assert requested == ["20240620", "deadbeef"]


# The commands


def test_resolve_prints_what_to_do_and_why(
    stores: Callable[..., None],
    tmp_path: Path,
    package: Package,
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = make(tmp_path / "long", ctx_len=8192)
    stores(write_remote(tmp_path / "zoo", package, long))
    assert main(["resolve", "org/tiny", "--ctx-len", "4096"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "USE ort-int4-pl128-cl4096-bs1 · " + package.build_key[4:12]
    rows = [line.split() for line in lines]
    shown = "fits ort-int4-pl128-cl4096-bs1 · {} 16.7 kB checkpoint no"
    assert ["package", "size", "validated", "signed", "status"] in rows
    assert shown.format(package.build_key[4:12]).split() in rows
    assert main(["resolve", "org/tiny", "--ctx-len", "8000", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["package"]["axes"]["ctx_len"]) == ("USE", 8192)
    assert facts["package"]["remote"] == (tmp_path / "zoo").as_uri()
    assert facts["candidates"][1]["refused"] == [
        {"axis": "ctx_len", "reason": "ctx_len is 4096, asked for at least 8000"}
    ]
    assert main(["resolve", "org/tiny", "--ctx-len", "9000"]) == 20
    out = capsys.readouterr().out
    assert out.startswith("FAIL\n  Nearest: ort-int4-pl128-cl8192-bs1 · ")
    assert "ctx_len is 8192, asked for at least 9000" in out


def test_yank_and_its_undoing_reach_who_resolves(
    stores: Callable[..., None],
    tmp_path: Path,
    package: Package,
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = make(tmp_path / "long", ctx_len=8192)
    url = write_remote(tmp_path / "zoo", package, long)
    before = (tmp_path / "zoo" / "packages").rglob("*")
    digests = {path: path.read_bytes() for path in before if path.is_file()}
    stores(url)
    key, other = package.build_key[4:20], long.build_key[4:20]

    def verdict(*more: str) -> tuple[int, dict[str, Any]]:
        code = main(["resolve", "org/tiny", "--json", "--ctx-len", "4096", *more])
        return code, json.loads(capsys.readouterr().out)

    assert main(["yank", url, package.build_key, "--reason", "wrong tokenizer"]) == 0
    assert capsys.readouterr().out.strip() == url
    code, facts = verdict()
    assert (code, facts["package"]["axes"]["ctx_len"]) == (0, 8192)
    assert facts["candidates"][1]["refused"] == [
        {"axis": "notice", "reason": "yanked: wrong tokenizer"}
    ]
    code, facts = verdict("--key", key)
    assert (code, facts["package"]["warnings"]) == (11, ["It is yanked: wrong tokenizer."])
    assert main(["yank", url, key, "--undo"]) == 0
    capsys.readouterr()
    assert verdict()[1]["package"]["axes"]["ctx_len"] == 4096
    assert main(["yank", url, key, "--reason", "slow", "--superseded-by", other]) == 0
    capsys.readouterr()
    assert verdict()[1]["package"]["axes"]["ctx_len"] == 8192
    assert main(["yank", url, key, "--reason", "wrong answers", "--known-bad", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "known_bad"
    assert verdict("--key", key)[0] == 20
    assert digests == {path: path.read_bytes() for path in digests}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["0" * 16, "--reason", "x"], "has no package '0000"),
        (["KEY"], "needs a reason"),
        (["KEY", "--reason", "two\nlines"], "expected one line"),
        (["KEY", "--reason", "x", "--superseded-by", "0" * 16], "has no package '0000"),
        (["KEY", "--reason", "x", "--superseded-by", "KEY"], "by itself"),
    ],
)
def test_yank_without_a_valid_reason_is_refused(
    stores: Callable[..., None], tmp_path: Path, package: Package, capsys: pytest.CaptureFixture[str],
    arguments: list[str], problem: str,
) -> None:  # fmt: skip
    url = write_remote(tmp_path / "zoo", package)
    content = (tmp_path / "zoo" / INDEX_NAME).read_bytes()
    given = [package.build_key[4:20] if argument == "KEY" else argument for argument in arguments]
    assert main(["yank", url, *given]) == 1
    assert problem in capsys.readouterr().err
    assert (tmp_path / "zoo" / INDEX_NAME).read_bytes() == content


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_yank_writes_the_index_and_the_card_of_a_repository_and_nothing_else(
    stores: Callable[..., None],
    alice: LocalHub,
    package: Package,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alice.commit("alice/zoo", remote(package))
    before = alice.files("alice/zoo")
    assert main(["yank", "alice/zoo", package.build_key, "--reason", "typo"]) == 0
    after = alice.files("alice/zoo")
    assert capsys.readouterr().out.strip().endswith(alice.models["alice/zoo"].resolve("main"))
    assert {name for name in after if after[name] != before.get(name)} == {INDEX_NAME, "README.md"}


_NO_SOCKETS = """
import sys
opened = []
def refuse(event, arguments):
    if event.startswith("socket."):
        opened.append(event)
        raise PermissionError(event)
sys.addaudithook(refuse)
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import main
code = main(sys.argv[1:])
assert not opened, opened
assert not {"torch", "transformers", "onnxruntime", "numpy"} & sys.modules.keys()
sys.exit(code)
"""


def test_offline_no_socket_is_opened_and_nothing_heavy_imported(
    stores: Callable[..., None], hub: LocalHub, tmp_path: Path, package: Package
) -> None:
    hub.commit("acme/zoo", remote(package))
    stores("hf://acme/zoo")
    command = [sys.executable, "-c", _NO_SOCKETS, "resolve", "org/tiny", "--json", "--offline"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    unseen = run()
    assert unseen.returncode == 1, unseen.stderr
    assert "was not seen before" in unseen.stderr
    resolve("org/tiny")
    recorded = run()
    assert recorded.returncode in (0, 11), recorded.stderr
    assert json.loads(recorded.stdout)["package"]["remote"].startswith("hf://acme/zoo@")
    keep(package)
    assert json.loads(run().stdout)["package"]["here"]
    command += ["--ctx-len", "65536"]
    refused = run()
    assert refused.returncode == 20, refused.stderr
    assert "is not in the cache" in json.loads(refused.stdout)["problems"][0]
