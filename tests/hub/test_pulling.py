# SPDX-License-Identifier: Apache-2.0
"""Packages of a remote in the store: whole and verified, or not there, whatever happens on the way."""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures_pulls import REPO, URL, WEIGHTS, content_bytes, is_clean, is_same, partial_bytes, pull
from local_hub import LocalHub
from package_builder import fill, overwrite
from remote_builder import entry_of, make, noise, remote, write_remote

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.disk.cloning import share
from qeff_zoo.disk.staging import remove
from qeff_zoo.errors import (
    GenerationError,
    PackageError,
    RemoteError,
    ResolutionError,
    StoreError,
    TrustError,
)
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.naming import full_name
from qeff_zoo.hub.pull import fetch, transfer
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME
from qeff_zoo.store import Store
from qeff_zoo.store.copies import copy_out

pytestmark = pytest.mark.usefixtures("pulling")


# --- what a pull gives -----------------------------------------------------------------------------


def test_pulled_packages_are_the_published_ones(
    zoo: LocalHub, published: Package, home: Path
) -> None:
    pulled = pull()
    assert is_same(pulled.package, published)
    assert not pulled.hit
    assert pulled.bytes_transferred == content_bytes(published)
    assert pulled.source == f"{URL}@{zoo.models[REPO].branches['main']}/{entry_of(published).path}"
    assert pulled.package == Store().lookup(published.build_key)
    assert not any((home / "staging").iterdir())
    assert not any((home / "partials").iterdir())


def test_files_of_the_store_are_not_transferred(zoo: LocalHub) -> None:
    first = pull()
    zoo.log.clear()
    again = pull()
    assert (again.hit, again.bytes_transferred, again.package) == (True, 0, first.package)
    (request,) = zoo.log  # whether the index is what it was
    assert (INDEX_NAME in request.path, request.sent) == (True, 0)


def test_a_package_that_was_built_here_is_as_good(zoo: LocalHub, home: Path) -> None:
    """It has the same key, and another manifest: at least the time of its build differs."""
    provenance = {
        "version": "0.1.0",
        "finished": "2026-11-21T10:00:00Z",
        "seconds": {},
        "peak_rss_bytes": 1,
    }
    with Store().stage("build") as folder:
        make(folder, provenance=provenance)
        built = Store().promote(folder, Package.open(folder).build_key)
    pulled = pull()
    assert (pulled.hit, pulled.package) == (True, built)
    assert pulled.bytes_transferred < 10_000  # no file but the manifest


def test_a_better_proved_package_replaces_the_one_here(zoo: LocalHub, published: Package) -> None:
    with Store().stage("build") as folder:
        fill(folder, spec=dict(published.manifest["spec"]), validated="none", validation=[])
        Store().promote(folder, published.build_key)
    pulled = pull()
    assert (pulled.hit, pulled.package.validated) == (False, "checkpoint")
    assert is_same(pulled.package, published)


def test_progress_is_reported_in_bytes(zoo: LocalHub, published: Package) -> None:
    @dataclass
    class Reported:
        total: int = 0
        done: int = 0

        def begin(self, stage: str, total: int | None, unit: str) -> None:
            assert (stage, unit) == ("pull", "B")
            self.total = total or 0

        def advance(self, amount: int) -> None:
            self.done += amount

        def end(self) -> None:
            assert self.done == self.total > 0

    pull(reporter=Reported())


def test_a_file_with_two_names_is_transferred_and_stored_once(
    hub: LocalHub, tmp_path: Path
) -> None:
    twice = make(tmp_path / "twice", {"model.onnx.data": WEIGHTS, "copy/weights.bin": WEIGHTS})
    hub.commit(REPO, remote(twice))
    pulled = pull()
    assert is_same(pulled.package, twice)
    assert len(WEIGHTS) < pulled.bytes_transferred < len(WEIGHTS) + 20_000


@pytest.mark.parametrize("kind", ["folder", "web"])
def test_other_remotes_are_pulled_from_alike(
    kind: str, tmp_path: Path, published: Package, web: Callable[[Path], str]
) -> None:
    url = write_remote(tmp_path / "remote", published)
    pulled = pull(url if kind == "folder" else web(tmp_path / "remote"))
    assert is_same(pulled.package, published)


@pytest.fixture
def web() -> Any:
    """Give a function that serves a folder, without knowing Range."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    servers = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    def serve(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


# --- wrong content ---------------------------------------------------------------------------------


def corrupt(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_a_file_corrupted_on_its_way_is_fetched_again(zoo: LocalHub, published: Package) -> None:
    zoo.fault("GET", "onnx.data", data=corrupt(WEIGHTS))
    pulled = pull()
    assert is_same(pulled.package, published)
    assert pulled.bytes_transferred == content_bytes(published) + len(WEIGHTS)


@pytest.mark.parametrize("name", ["model.onnx.data", "tokenizer.json", "evidence/logits.json"])
def test_a_file_that_stays_corrupt_is_never_used(
    hub: LocalHub, published: Package, home: Path, name: str
) -> None:
    files = remote(published)
    path = f"{entry_of(published).path}/{name}"
    hub.commit(REPO, {**files, path: corrupt(files[path])})
    with pytest.raises(RemoteError, match="also when fetched again"):
        pull()
    assert is_clean(home)
    digest = hashlib.sha256(files[path]).hexdigest()
    assert not any(path.stat().st_size for path in (home / "partials").glob(f"{digest}*"))

    hub.commit(REPO, files)
    assert is_same(pull().package, published)


def test_a_manifest_that_was_changed_is_refused_unread(
    hub: LocalHub, published: Package, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = remote(published)
    path = f"{entry_of(published).path}/{MANIFEST_NAME}"
    hub.commit(REPO, {**files, path: files[path].replace(b"Apache-2.0", b"Apache-2.1")})
    hub.commit(REPO, {path: files[path] + b" "})
    monkeypatch.setattr(fetch, "parse", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(RemoteError, match="has SHA-256"):
        pull()
    assert is_clean(home)


def test_trust_is_checked_before_the_manifest_is_parsed(
    zoo: LocalHub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> list[str]:
        raise TrustError("no")

    monkeypatch.setattr(fetch.trust, "check", refuse)
    monkeypatch.setattr(fetch, "parse", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(TrustError):
        pull()
    assert is_clean(home)


def test_a_package_in_the_store_is_trusted_no_more_than_now(
    zoo: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull()
    pinned = {"identities": [{"identity": "releases@acme.example", "issuer": "https://issuer"}]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(pinned))
    (warning,) = pull().warnings
    assert "not signed" in warning


def test_missing_pins_are_reported_once(zoo: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ZOO_TRUST", "warn")
    (warning,) = pull().warnings
    assert "No signer is pinned for hf://" in warning
    assert pull().warnings == ()
    for entry in Store().entries():
        remove(entry.path)
    assert not pull().hit
    assert pull().warnings == ()


def rewritten(published: Package, **changes: Any) -> dict[str, bytes]:
    """Give a remote whose manifest says something else, and whose index agrees with that."""
    files, entry = remote(published), entry_of(published)
    content = json.dumps({**published.manifest, **changes}).encode()
    entry = replace(entry, manifest=hashlib.sha256(content).hexdigest())
    index = encode(Index().with_entry(entry))
    return {**files, f"{entry.path}/{MANIFEST_NAME}": content, INDEX_NAME: index}


def moved(published: Package, path: str) -> list[Any]:
    first, *others = published.manifest["files"]
    return [{**first, "path": path}, *others]


@pytest.mark.parametrize("path", ["../escape", "/etc/escape", "a/../../escape", "a\\b", "nul\0"])
def test_paths_out_of_the_package_are_refused(
    hub: LocalHub, published: Package, home: Path, path: str
) -> None:
    hub.commit(REPO, rewritten(published, files=moved(published, path)))
    with pytest.raises(RemoteError, match="not a right one"):
        pull()
    assert is_clean(home)
    assert not list(home.parent.rglob("escape"))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema": "qeff-package/9"}', b"[" * 9999]
)
def test_invalid_manifest_is_refused(
    hub: LocalHub, published: Package, home: Path, content: bytes
) -> None:
    files, entry = remote(published), entry_of(published)
    entry = replace(entry, manifest=hashlib.sha256(content).hexdigest())
    files |= {
        f"{entry.path}/{MANIFEST_NAME}": content,
        INDEX_NAME: encode(Index().with_entry(entry)),
    }
    hub.commit(REPO, files)
    with pytest.raises(RemoteError, match="not a right one"):
        pull()
    assert is_clean(home)


def test_a_manifest_may_not_fill_the_memory(
    zoo: LocalHub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MANIFEST_LIMIT", 1000)
    with pytest.raises(RemoteError, match="more than 1,000 bytes"):
        pull()
    assert is_clean(home)


@pytest.mark.parametrize(
    "lie", [{"axes": {"target": "ort", "weights": "fp32"}}, {"model": "org/other"}, {"validated": "device"},
            {"size": 7}, {"revision": "f" * 40}], ids=lambda lie: next(iter(lie)),
)  # fmt: skip
def test_a_false_index_is_refused(
    hub: LocalHub, published: Package, home: Path, lie: dict[str, Any]
) -> None:
    index = Index().with_entry(replace(entry_of(published), **lie))
    hub.commit(REPO, remote(published, index=index))
    with pytest.raises(RemoteError, match=r"The index of .* says of"):
        pull()
    assert is_clean(home)


@pytest.mark.parametrize("length", [0, 1, 10, 100, -1])
def test_a_truncated_index_is_refused(
    hub: LocalHub, published: Package, home: Path, length: int
) -> None:
    files = remote(published)
    hub.commit(REPO, {**files, INDEX_NAME: files[INDEX_NAME][:length]})
    with pytest.raises(RemoteError):
        pull()
    assert is_clean(home)
    hub.commit(REPO, files)
    assert is_same(pull().package, published)


# --- what the store has already --------------------------------------------------------------------


def test_a_variant_that_shares_weights_transfers_little(
    hub: LocalHub, published: Package, tmp_path: Path
) -> None:
    longer = make(
        tmp_path / "longer", {"model.onnx.data": WEIGHTS, "model.onnx": b"x"}, ctx_len=8192
    )
    hub.commit(REPO, remote(published, longer))
    first, second = pull(), pull(number=1)
    assert is_same(second.package, longer)
    assert second.bytes_transferred == 1 + (longer.path / MANIFEST_NAME).stat().st_size
    files = [each.package.path / "model.onnx.data" for each in (first, second)]
    assert files[0].samefile(files[1]) or not can_link(tmp_path)  # stored once, where that shows

    shutil.rmtree(first.package.path)
    assert second.package.verify() == []


def can_link(folder: Path) -> bool:
    """Return whether this file system shares files by links, and not by clones of which one sees nothing."""
    (folder / "one").write_bytes(b"1")
    share(folder / "one", folder / "two")
    return (folder / "one").samefile(folder / "two")


def test_weights_of_realistic_size_are_less_than_a_hundredth(hub: LocalHub, tmp_path: Path) -> None:
    weights = {"model.onnx.data": noise(2_000_000)}
    packages = [make(tmp_path / f"{n}", weights, ctx_len=n) for n in (1024, 2048)]
    hub.commit(REPO, remote(*packages))
    first, second = pull(), pull(number=1)
    assert second.bytes_transferred < 0.01 * first.bytes_transferred


def test_a_damaged_neighbour_gives_nothing(
    hub: LocalHub, published: Package, tmp_path: Path
) -> None:
    longer = make(tmp_path / "longer", {"model.onnx.data": WEIGHTS}, ctx_len=8192)
    hub.commit(REPO, remote(published, longer))
    overwrite(pull().package.path / "model.onnx.data", corrupt(WEIGHTS))
    second = pull(number=1)
    assert is_same(second.package, longer)
    assert second.bytes_transferred > len(WEIGHTS)


def test_copies_for_users_are_real_copies(
    zoo: LocalHub, published: Package, tmp_path: Path
) -> None:
    copy = copy_out(pull().package, tmp_path / "copy")
    (copy.path / "tokenizer.json").write_bytes(b"[]")
    assert pull().package.verify() == []


# --- room ------------------------------------------------------------------------------------------


def test_lack_of_room_is_noticed_before_any_download(
    zoo: LocalHub, published: Package, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(home.parent)._replace(free=published.size - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(
        StoreError, match=f"takes {published.size:,} bytes and {published.size - 1:,}"
    ):
        pull()
    assert is_clean(home)
    assert not zoo.requests("tokenizer.json")


def test_room_is_needed_for_what_is_missing_only(
    zoo: LocalHub, published: Package, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.fault("GET", "onnx.data", cut=150_000)
    zoo.fault("GET", "onnx.data", status=503, times=100)
    with pytest.raises(RemoteError):
        pull()
    missing = published.size - partial_bytes(home)
    assert missing < 60_000
    zoo.faults.clear()
    free = shutil.disk_usage(home.parent)._replace(free=missing)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert is_same(pull().package, published)


def test_a_disk_that_fills_up_is_the_stores_error(
    zoo: LocalHub, published: Package, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(transfer.Transfer, "_advance", full)
        with pytest.raises(StoreError, match="No space left on device"):
            pull()
    assert is_clean(home)
    assert is_same(pull().package, published)


# --- as users meet it ------------------------------------------------------------------------------


def command(*argv: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> tuple[str, str]:
    """Run a command in this process; give what it wrote to stdout and stderr."""
    capsys.readouterr()
    found = cli.main([*argv])
    out, err = capsys.readouterr()
    assert found == code, err
    return out, err


@pytest.fixture
def configured(zoo: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """Give a Hub with the package of `org/tiny` in a repository that is one of the user's stores."""
    monkeypatch.setenv("QEFF_ZOO_STORES", URL)
    return zoo


@pytest.mark.parametrize("reference", ["org/tiny", REPO, f"{REPO}@main", URL, f"{URL}@main"])
def test_pull_prints_the_path(
    configured: LocalHub, published: Package, capsys: pytest.CaptureFixture[str], reference: str
) -> None:
    out, err = command("pull", reference, capsys=capsys)
    assert is_same(Package.open(out.strip()), published)
    name = full_name("org/tiny", entry_of(published).path)
    assert f"{name}: pulled, " in err
    assert command("pull", reference, capsys=capsys) == (out, f"{name}: was in the store already\n")


def test_pull_answers_in_json(
    configured: LocalHub, published: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        json.loads(command("pull", "org/tiny", "--json", capsys=capsys)[0]) for _ in range(2)
    ]
    path = Store().root / "packages" / published.build_key
    commit = configured.models[REPO].branches["main"]
    same = {
        "path": str(path),
        "build_key": published.build_key,
        "source": f"{URL}@{commit}/{entry_of(published).path}",
        "warnings": answers[0]["warnings"],
    }
    assert answers[0] == {**same, "hit": False, "bytes_transferred": content_bytes(published)}
    assert answers[1] == {**same, "hit": True, "bytes_transferred": 0}


def test_pull_copies_to_a_folder(
    configured: LocalHub, published: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = b"a signature"
    (published.path / "manifest.json.sigstore").write_bytes(signature)
    configured.commit(REPO, remote(published))
    out, _ = command("pull", "org/tiny", "-o", str(tmp_path / "copy"), capsys=capsys)
    assert out.strip() == str(tmp_path / "copy")
    assert is_same(Package.open(tmp_path / "copy"), published)
    assert (tmp_path / "copy" / "manifest.json.sigstore").read_bytes() == signature


def test_choices_choose(
    hub: LocalHub, published: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    longer = make(tmp_path / "longer", ctx_len=8192)
    hub.commit(REPO, remote(published, longer))
    monkeypatch.setenv("QEFF_ZOO_STORES", URL)
    for ctx_len, expected in ((4096, published), (5000, longer)):
        out, _ = command("pull", "org/tiny", "--ctx-len", str(ctx_len), capsys=capsys)
        assert Package.open(out.strip()).build_key == expected.build_key
    _, err = command("pull", "org/tiny", "--ctx-len", "9000", capsys=capsys, code=20)
    assert "ctx_len is 8192" in err
    out, _ = command("pull", "org/tiny", "--key", published.build_key[:20], capsys=capsys)
    assert Package.open(out.strip()).build_key == published.build_key


def test_absent_package_is_built_with_the_requested_options(
    hub: LocalHub, published: Package, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    requested: list[Any] = []

    def build(model: str, request: Any, **options: Any) -> Any:
        requested.append((model, request.ctx_len, request.weights, options["revision"]))
        return SimpleNamespace(package=published)

    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    hub.commit("org/tiny", {"config.json": json.dumps(config).encode()})
    monkeypatch.setattr("qeff_zoo.pipeline.build", build)
    monkeypatch.setattr("qeff_zoo.hub.resolve._obstacles", lambda *_: [])
    argv = ("pull", "org/tiny", "--ctx-len", "9000", "--weights", "int4")
    _, err = command(*argv, capsys=capsys, code=10)
    assert "qeff-zoo build org/tiny" in err
    assert not requested
    out, _ = command(*argv, "--or-build", "--json", capsys=capsys)
    assert requested == [("org/tiny", 9000, "int4", None)]
    assert json.loads(out) == {
        "path": str(published.path), "build_key": published.build_key, "hit": False,
        "bytes_transferred": 0, "source": None, "warnings": [],
    }  # fmt: skip


@pytest.mark.parametrize("state", ["yanked", "known_bad", "superseded"])
def test_notices_about_a_package_are_shown(
    hub: LocalHub, published: Package, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], state: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("QEFF_ZOO_STORES", URL)
    entry = entry_of(published)
    index = Index().with_entry(entry).with_notice(entry.path, Notice(state, "wrong at 4096 tokens"))
    hub.commit(REPO, remote(published, index=index))
    if state == "superseded":
        _, err = command("pull", "org/tiny", capsys=capsys, code=11)
    else:
        _, err = command("pull", "org/tiny", capsys=capsys, code=20)
        assert not Store().entries()
    assert "wrong at 4096 tokens" in err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["pull"], 1, "Cannot pull 0 models"),
        (["pull", "a/b", "c/d"], 1, "Cannot pull 2 models"),
        (
            ["pull", "nobody/nothing"],
            20,
            "The Hub has no repository 'nobody/nothing', or it is private",
        ),
        (
            ["pull", "hf://nobody/nothing"],
            20,
            "The Hub has no repository 'nobody/nothing', or it is",
        ),
        (
            ["ls", "nobody/nothing"],
            1,
            "The Hub has no repository 'nobody/nothing', or it is private",
        ),
        (
            ["pull", "a/b", "--from", "nobody/nothing"],
            1,
            "The Hub has no repository 'nobody/nothing'",
        ),
        (
            ["run", "nobody/nothing", "--prompt", "x"],
            1,
            "The Hub has no repository 'nobody/nothing'",
        ),
        (
            ["serve", "nobody/nothing", "--port", "0"],
            1,
            "The Hub has no repository 'nobody/nothing'",
        ),
        (["chat", "nobody/nothing"], 1, "The Hub has no repository 'nobody/nothing'"),
        (["inspect", "nobody/nothing"], 1, "`qeff-zoo pull nobody/nothing`"),
        (["pull", "ftp://x/y"], 1, "names no remote"),
        (["pull", "hf://a/b", "--from", "hf://c/d"], 1, "Expected a model of one remote"),
        (["pull", "--locked", "no-such.lock"], 1, "Cannot read the lock"),
    ],
)
def test_errors_have_advice(
    hub: LocalHub, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, message: str
) -> None:
    _, err = command(*argv, capsys=capsys, code=code)
    assert message in err
    assert err.count("\n") == 1


def test_load_pulls_what_is_not_here(
    configured: LocalHub, published: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qeff_zoo.sessions.open_session", lambda published, **_: published)
    monkeypatch.setenv("QEFF_ZOO_TRUST", "warn")
    with pytest.warns(
        UserWarning, match="org/tiny: No signer is pinned for hf://acme/zoo, so nothing proves"
    ):
        loaded: Any = qeff_zoo.load("org/tiny")
    assert is_same(loaded, published)
    configured.log.clear()
    for reference in ("org/tiny", published.build_key[:16], loaded.path):
        again: Any = qeff_zoo.load(reference)  # here already: nobody is asked, of anything
        assert again == loaded
    assert configured.log == []
    for nothing in ("no-such-thing", "./no-such/thing", "./no-such", "../no-such"):
        with pytest.raises(PackageError, match="neither a folder"):
            qeff_zoo.load(nothing)
    assert configured.log == []


@pytest.mark.parametrize("argv", [
    ["run", "MODEL", "--prompt", "x"], ["serve", "MODEL", "--port", "0"], ["chat", "MODEL"], ["bench", "MODEL"],
    ["validate", "MODEL", "--perplexity", __file__],
], ids=lambda argv: argv[0])  # fmt: skip
def test_commands_pull_an_absent_package(
    configured: LocalHub, published: Package, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], argv: list[str],
) -> None:  # fmt: skip
    def reach(*_: Any, **__: Any) -> None:
        raise GenerationError("It is here.")

    for name in (
        *("sessions.open_session", "runtime.engine.conversation.require_template", "bench.plan"),
        "validation.perplexity.prepare",
    ):
        monkeypatch.setattr(f"qeff_zoo.{name}", reach)
    url = f"{URL}@{configured.models[REPO].branches['main']}"
    name = full_name("org/tiny", entry_of(published).path)
    message = f"Pulling {name}, 200 kB, from {url}\n"
    for expected in (f"{message}qeff-zoo: It is here.\n", "qeff-zoo: It is here.\n"):
        given = ["org/tiny" if part == "MODEL" else part for part in argv]
        assert command(*given, capsys=capsys, code=1) == ("", expected)
    assert is_same(Package.open(Store().root / "packages" / published.build_key), published)


def test_progress_of_what_load_pulls_is_shown_to_a_person(
    configured: LocalHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qeff_zoo.sessions.open_session", lambda package, **_: package)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    qeff_zoo.load("org/tiny")
    assert re.search(r"\rpull +100%", capsys.readouterr().err)


def test_pull_reads_the_named_remote(
    configured: LocalHub, published: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = make(tmp_path / "longer", ctx_len=8192)
    url = write_remote(tmp_path / "other", longer)
    for argv in (
        ["pull", "org/tiny", "--from", url],
        ["pull", url, "--key", longer.build_key[4:12]],
    ):
        out, _ = command(*argv, capsys=capsys)
        assert Package.open(out.strip()).build_key == longer.build_key
    assert qeff_zoo.pull("org/tiny", remote=REPO).build_key == published.build_key
    _, err = command("lock", "org/tiny", "--from", url, "-o", str(tmp_path / "lock"), capsys=capsys)
    assert f"org/tiny: ort-int4-pl128-cl8192-bs1 · {longer.build_key[4:12]} of {url}" in err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["pull", "org/tiny", "--from", url, "--locked", str(tmp_path / "lock")])


def test_pull_of_the_api(configured: LocalHub, published: Package, tmp_path: Path) -> None:
    pulled = qeff_zoo.pull("org/tiny", ctx_len=4096, output=tmp_path / "copy")
    assert is_same(pulled, published)
    assert pulled.path == tmp_path / "copy"
    with pytest.raises(ResolutionError, match="ctx_len"):
        qeff_zoo.pull("org/tiny", ctx_len=10**6)


def test_package_stays_after_it_leaves_the_index(
    configured: LocalHub, published: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = command("pull", "org/tiny", capsys=capsys)
    configured.commit(REPO, {INDEX_NAME: encode(Index(serial=7))})
    assert command("pull", "org/tiny", capsys=capsys)[0] == out
    manifest = Path(out.strip()) / MANIFEST_NAME
    overwrite(manifest, manifest.read_bytes().replace(b"2026-11-20", b"2026-11-21"))
    _, err = command("pull", "org/tiny", capsys=capsys, code=1)
    assert f"qeff-zoo repair {published.build_key[:16]}" in err


# --- offline, and light ----------------------------------------------------------------------------


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function after which nobody opens a socket, or asks for an address."""

    def forbid() -> None:
        def refuse(*_: Any, **__: Any) -> None:
            pytest.fail("a socket was opened")

        for name in ("socket", "create_connection", "getaddrinfo", "socketpair"):
            monkeypatch.setattr(socket, name, refuse)

    return forbid


def test_offline_what_is_here_is_found_without_a_socket(
    configured: LocalHub, published: Package, tmp_path: Path, no_sockets: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    longer = make(tmp_path / "longer", ctx_len=8192)
    configured.commit(REPO, remote(published, longer))
    path, _ = command("pull", "org/tiny", "--ctx-len", "4096", capsys=capsys)
    monkeypatch.setenv(
        "QEFF_ZOO_OFFLINE", "0"
    )  # taken back after the test, whatever --offline sets
    no_sockets()
    for argv in (["--offline"], ["--offline", "--ctx-len", "4000"]):
        assert command("pull", "org/tiny", *argv, capsys=capsys)[0] == path
    _, err = command("pull", "org/tiny", "--offline", "--ctx-len", "8192", capsys=capsys, code=1)
    assert "OFFLINE" in err
    _, err = command("pull", "org/other", "--offline", capsys=capsys, code=20)
    assert "cannot be asked offline" in err


_FRESH = """
import sys
from qeff_zoo import cli
try:
    code = cli.main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
heavy = {"torch", "numpy", "onnxruntime", "transformers", "onnx", "tokenizers", "safetensors"}
print(code, *sorted(heavy & {*sys.modules}), "huggingface_hub" in sys.modules)
"""


@pytest.mark.parametrize("argv", [["pull", "--help"], ["pull", "org/tiny", "--json"]])
def test_a_pull_imports_nothing_heavy(configured: LocalHub, argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FRESH, *argv], capture_output=True, text=True, check=True
    )
    expected = ["0", "False"] if "--help" in argv else ["0", "True"]
    assert done.stdout.splitlines()[-1].split() == expected
