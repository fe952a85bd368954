# SPDX-License-Identifier: Apache-2.0
"""What a lock pins is what everybody gets, and nothing else is."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_hub import LocalHub
from remote_builder import entry_of, make, remote, write_remote

from qeff_zoo import cli
from qeff_zoo.errors import RemoteError, ResolutionError
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.pull import Puller, lock
from qeff_zoo.hub.remotes import http
from qeff_zoo.package import Package
from qeff_zoo.store import Store

REPO = "acme/zoo"
Command = Callable[..., tuple[str, str]]


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("QEFF_HOME", str(tmp_path / "home")),
        ("QEFF_ZOO_TRUST", "off"),
        ("QEFF_ZOO_STORES", f"hf://{REPO}"),
        ("QEFF_ZOO_OFFLINE", "0"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(http, "_FIRST_PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def packages(tmp_path: Path) -> list[Package]:
    return [make(tmp_path / f"{n}", ctx_len=n) for n in (4096, 8192)]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*argv: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        found = cli.main([*argv])
        out, err = capsys.readouterr()
        assert found == code, err
        return out, err

    return run


def read(path: str = "qeff-zoo.lock") -> Any:
    return json.loads(Path(path).read_text())


def test_a_lock_pins_commit_and_manifest(
    hub: LocalHub, packages: list[Package], command: Command
) -> None:
    commit = hub.commit(REPO, remote(*packages))
    assert command("lock", "org/tiny", "--ctx-len", "8000")[0] == "qeff-zoo.lock\n"
    entry = entry_of(packages[1])
    assert read() == {
        "schema": "qeff-lock/1",
        "packages": [
            {
                "model": "org/tiny",
                "asked": {"ctx_len": 8000},
                "url": f"hf://{REPO}@{commit}",
                "path": entry.path,
                "manifest": entry.manifest,
                "signed": False,
            }
        ],
    }
    before = Path("qeff-zoo.lock").read_bytes()
    command("lock", "org/tiny", "--ctx-len", "8000")
    assert Path("qeff-zoo.lock").read_bytes() == before
    assert not Store().entries()  # nothing was pulled for it


def test_locked_packages_are_pulled_when_the_index_has_moved_on(
    hub: LocalHub, packages: list[Package], command: Command, tmp_path: Path
) -> None:
    hub.commit(REPO, remote(packages[0]))
    command("lock", "org/tiny", "-o", "pinned.lock")
    newer = make(tmp_path / "newer", {"tokenizer.json": b"[]"}, provenance=later())
    assert newer.build_key == packages[0].build_key  # the same, built again
    gone = {path: None for path in remote(packages[0]) if path != INDEX_NAME}
    hub.commit(REPO, {**gone, **remote(newer, packages[1])})

    out, _ = command("pull", "--locked", "pinned.lock")
    assert Package.open(out.strip()).manifest == packages[0].manifest
    assert Package.open(out.strip()).verify() == []


def later() -> dict[str, Any]:
    return {
        "version": "0.1.0",
        "finished": "2026-11-21T10:00:00Z",
        "seconds": {},
        "peak_rss_bytes": 1,
    }


def test_another_digest_is_refused(
    packages: list[Package], command: Command, tmp_path: Path
) -> None:
    """In a folder there are no commits: what is there now is all there is."""
    url = write_remote(tmp_path / "remote", packages[0])
    command("lock", url)
    again = make(tmp_path / "again", provenance=later())
    assert write_remote(tmp_path / "remote", again, serial=2) == url
    _, err = command("pull", "--locked", code=1)
    assert f"expected {entry_of(packages[0]).manifest}" in err
    assert not Store().entries()
    assert command("pull", url)  # it is there for who did not lock


def test_lock_requires_the_pinned_manifest_of_a_package_in_the_store(
    hub: LocalHub, packages: list[Package], command: Command
) -> None:
    """A package that was built here has the same key, and would do for anyone without a lock."""
    hub.commit(REPO, remote(packages[0]))
    command("lock", "org/tiny")
    with Store().stage("build") as folder:
        Store().promote(folder, make(folder, provenance=later()).build_key)
    out, _ = command("pull", "org/tiny")
    assert Package.open(out.strip()).manifest != packages[0].manifest
    assert command("pull", "--locked")[0] == out
    assert Package.open(out.strip()).manifest == packages[0].manifest


def test_of_what_is_here_the_index_alone_is_read(
    hub: LocalHub, packages: list[Package], command: Command
) -> None:
    hub.commit(REPO, remote(*packages))
    command("lock", "org/tiny")
    out, _ = command("pull", "--locked")
    hub.log.clear()
    answer = json.loads(command("pull", "--locked", "--json")[0])
    assert [(one["path"], one["hit"], one["bytes_transferred"]) for one in answer] == [
        (out.strip(), True, 0)
    ]
    assert hub.log
    assert all(INDEX_NAME in line or "/revision/" in line for line in map(str, hub.log))
    hub.log.clear()
    assert command("pull", "--locked", "--offline")[0] == out
    assert hub.log == []


def test_offline_what_is_not_here_is_refused(
    hub: LocalHub, packages: list[Package], command: Command
) -> None:
    hub.commit(REPO, remote(*packages))
    command("lock", "org/tiny")
    hub.log.clear()
    _, err = command("pull", "--locked", "--offline", code=1)
    assert "ffline" in err.replace("OFFLINE", "offline")
    assert hub.log == []


def test_several_models_and_some_of_them(
    hub: LocalHub, packages: list[Package], command: Command, tmp_path: Path
) -> None:
    url = write_remote(tmp_path / "remote", packages[1])
    hub.commit(REPO, remote(packages[0]))
    command("lock", "org/tiny", url)
    keys = [package.build_key for package in packages]
    assert [Path(line).name for line in command("pull", "--locked")[0].split()] == keys
    assert [Path(line).name for line in command("pull", url, "--locked")[0].split()] == keys[1:]
    _, err = command("pull", url, "--locked", "--key", "802246d4", code=1)
    assert "Leave one out" in err
    _, err = command("pull", "org/other", "--locked", code=1)
    assert "The lock has no package of 'org/other'" in err
    _, err = command("pull", "--locked", "-o", "copy", code=1)
    assert "Cannot copy 2 packages" in err


def test_notices_of_a_locked_package_are_shown(
    hub: LocalHub, packages: list[Package], command: Command, tmp_path: Path
) -> None:
    url = write_remote(tmp_path / "remote", packages[0])
    command("lock", url)
    entry = entry_of(packages[0])
    index = Index().with_entry(entry).with_notice(entry.path, Notice("known_bad", "wrong"))
    (tmp_path / "remote" / INDEX_NAME).write_bytes(encode(index))
    assert "known bad: wrong" in command("pull", "--locked", code=11)[1]


def test_a_notice_that_came_after_the_lock_is_shown(
    hub: LocalHub, packages: list[Package], command: Command
) -> None:
    """Of the pinned commit nothing was known yet."""
    hub.commit(REPO, remote(packages[0]))
    command("lock", "org/tiny")
    entry = entry_of(packages[0])
    index = Index().with_entry(entry).with_notice(entry.path, Notice("known_bad", "wrong"))
    hub.commit(REPO, {INDEX_NAME: encode(index)})
    for _ in range(2):  # pulled, and here
        assert "known bad: wrong" in command("pull", "--locked", code=11)[1]


def test_unpublished_package_cannot_be_locked(
    packages: list[Package], hub: LocalHub, command: Command
) -> None:
    with Store().stage("build") as folder:
        Store().promote(folder, make(folder).build_key)
    _, err = command("lock", "org/tiny", code=1)
    assert "was built here and is published nowhere" in err
    assert not Path("qeff-zoo.lock").exists()


def test_pulled_package_can_be_locked_without_its_remote(
    hub: LocalHub, packages: list[Package], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.commit(REPO, remote(packages[0]))
    command("pull", "org/tiny")
    monkeypatch.setenv("QEFF_ZOO_STORES", "")
    command("lock", "org/tiny")
    assert read()["packages"][0]["url"] == f"hf://{REPO}@{commit}"


GOOD: dict[str, Any] = {
    "model": "org/tiny", "asked": {}, "url": "file:///zoo", "path": "packages/a/0123456789abcdef",
    "manifest": "0" * 64, "signed": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"schema": "qeff-lock/1"}', '{"schema": "qeff-lock/2", "packages": []}',
        '{"schema": "qeff-lock/1", "packages": 3}', '{"schema": "qeff-lock/1", "packages": [3]}',
        *(
            json.dumps({"schema": "qeff-lock/1", "packages": [{**GOOD, **change}]})
            for change in (
                {"manifest": "0" * 63}, {"manifest": "Z" * 64}, {"path": "../x"}, {"path": "/x"}, {"signed": 1},
                {"more": 1}, {"url": None},
            )
        ),
    ],
)  # fmt: skip
def test_invalid_lock_file_is_refused(content: str) -> None:
    Path("bad.lock").write_text(content)
    with pytest.raises(ResolutionError, match=r"Cannot read the lock 'bad\.lock'"):
        lock.read_lock(Path("bad.lock"))


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "good.lock"
    path.write_text(json.dumps({"schema": "qeff-lock/1", "packages": [GOOD]}))
    locked = lock.read_lock(path)
    lock.write_lock(path, locked)
    assert lock.read_lock(path) == locked


def test_a_lock_cannot_lead_to_another_place(tmp_path: Path, packages: list[Package]) -> None:
    url = write_remote(tmp_path / "remote", packages[0])
    (locked,) = lock.lock([url])
    for origin in (
        replace(locked.origin, url=(tmp_path / "elsewhere").as_uri()),
        replace(locked.origin, path="packages/a/0123456789abcdef"),
    ):
        with pytest.raises(RemoteError):
            lock.pull_locked(replace(locked, origin=origin), Puller(Store()))
    assert not Store().entries()
