# SPDX-License-Identifier: Apache-2.0
"""Packages in one file: written whole, read with mistrust, without a socket."""

import gzip
import io
import json
import socket
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import selection
from fixtures_pulls import assert_recovers
from kills import empty, kill
from local_hub import LocalHub
from package_builder import overwrite
from remote_builder import entry_of, make, noise, remote
from signing_keys import make_pair

from qeff_zoo import cli
from qeff_zoo.errors import PackageError, RemoteError, StoreError
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.pull import bundle
from qeff_zoo.hub.pull.bundle import export_bundle, import_bundle
from qeff_zoo.hub.pull.repair import repair
from qeff_zoo.hub.trust import sign
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME
from qeff_zoo.store import Store

WEIGHTS = noise(300_000)


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("QEFF_ZOO_TRUST", "off")


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo", "socketpair"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.fixture
def packages(tmp_path: Path) -> list[Package]:
    """Make two packages that share their weights; one is signed, and has a file in a folder of a long name."""
    long = "/".join(["a-folder-of-a-name-that-no-header-of-a-tar-holds-at-once"] * 4)
    first = make(tmp_path / "first", {"model.onnx.data": WEIGHTS, f"{long}/ü.txt": b"far"})
    second = make(tmp_path / "second", {"model.onnx.data": WEIGHTS}, ctx_len=8192)
    (first.path / "manifest.json.sigstore").write_bytes(b"a signature")
    return [first, second]


def contents(package: Package) -> dict[str, bytes]:
    return {
        str(path.relative_to(package.path)): path.read_bytes()
        for path in package.path.rglob("*")
        if path.is_file() and path.name != "manifest.json.origin"
    }


# --- there and back --------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_sockets")
def test_imported_bundle_equals_the_exported_packages(
    packages: list[Package], tmp_path: Path
) -> None:
    size = export_bundle(packages, tmp_path / "zoo.tar")
    assert size == (tmp_path / "zoo.tar").stat().st_size
    assert size < sum(package.size for package in packages) + 200_000
    imported = import_bundle(tmp_path / "zoo.tar")
    assert [contents(each.package) for each in imported] == [contents(each) for each in packages]
    assert all(each.package.verify() == [] and not each.hit for each in imported)
    assert all(each.package.path.parent == Store().root / "packages" for each in imported)
    assert not any((Store().root / "partials").iterdir())
    again = import_bundle(tmp_path / "zoo.tar")
    assert all(each.hit and each.bytes_transferred == 0 for each in again)


def test_a_bundle_is_the_same_wherever_it_is_made(packages: list[Package], tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        for path in packages[0].path.rglob("*"):
            path.touch()
        export_bundle([*packages, packages[0]], tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_a_bundle_is_a_remote_in_a_tar(packages: list[Package], tmp_path: Path) -> None:
    export_bundle(packages, tmp_path / "zoo.tar")
    with tarfile.open(tmp_path / "zoo.tar", "r:") as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert found == remote(*packages)


def test_nothing_is_written_beside_the_bundle_but_the_bundle(
    packages: list[Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "zoo.tar").write_bytes(b"an older one")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bundle.os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            export_bundle(packages, folder / "zoo.tar")
    assert [path.name for path in folder.iterdir()] == ["zoo.tar"]
    assert (folder / "zoo.tar").read_bytes() == b"an older one"
    export_bundle(packages, folder / "zoo.tar")
    assert [path.name for path in folder.iterdir()] == ["zoo.tar"]
    assert len(import_bundle(folder / "zoo.tar")) == 2


def test_a_damaged_package_is_not_exported(packages: list[Package], tmp_path: Path) -> None:
    (packages[1].path / "model.onnx.data").write_bytes(WEIGHTS[:-1] + b"x")
    with pytest.raises(PackageError, match=r"'model\.onnx\.data' of package .* is damaged"):
        export_bundle(packages, tmp_path / "zoo.tar")
    assert not list(tmp_path.glob("*zoo.tar*"))


def test_too_little_room_is_noticed_before(
    packages: list[Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    free = shutil.disk_usage(tmp_path)._replace(free=len(WEIGHTS))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(StoreError, match="the bundle"):
        export_bundle(packages, tmp_path / "zoo.tar")


def test_on_the_command_line(
    hub: LocalHub, packages: list[Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.commit("acme/zoo", remote(packages[1]))
    file = str(tmp_path / "zoo.tar")
    argv = ["bundle", "export", str(packages[0].path), "acme/zoo", "-o", file]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.strip() == file
    hub.log.clear()
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "elsewhere"))
    assert cli.main(["bundle", "import", file, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["build_key"] for one in answer] == [each.build_key for each in packages]
    assert [Path(one["path"]).parent for one in answer] == [tmp_path / "elsewhere/packages"] * 2
    assert hub.log == []


# --- packages that are there already, and damaged --------------------------------------------------


def flip(path: Path) -> None:
    content = path.read_bytes()
    overwrite(path, content[:-1] + bytes([content[-1] ^ 1]))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "weights": lambda path: flip(path / "model.onnx.data"),
    "gone": lambda path: (path / "model.onnx").unlink(),
    "manifest": lambda path: flip(path / MANIFEST_NAME),
    "no-manifest": lambda path: (path / MANIFEST_NAME).unlink(),
    "signature": lambda path: overwrite(path / SIGNATURE_NAME, b"{"),
    "stranger": lambda path: (path / "stranger.txt").write_text("x"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_importing_again_mends_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    monkeypatch.setenv("QEFF_ZOO_TRUST", "warn")
    package = make(tmp_path / "signed", {"model.onnx.data": WEIGHTS})
    signature = sign(package, key=make_pair(tmp_path, "acme").private).read_bytes()
    file = str(tmp_path / "zoo.tar")
    export_bundle([package], Path(file))
    (there,) = (each.package for each in import_bundle(Path(file)))
    DAMAGE[damage](there.path)

    assert cli.main(["bundle", "import", file]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == str(there.path)
    assert "The store's copy was damaged, and is mended: " in shown.err
    assert contents(there) == contents(package)
    assert (there.path / SIGNATURE_NAME).read_bytes() == signature
    assert there.verify() == []
    (again,) = import_bundle(Path(file))
    assert (again.hit, again.bytes_transferred) == (True, 0)
    assert not any("mended" in warning for warning in again.warnings)


def test_only_what_is_damaged_is_copied(packages: list[Package], tmp_path: Path) -> None:
    export_bundle(packages, tmp_path / "zoo.tar")
    first, second = (each.package for each in import_bundle(tmp_path / "zoo.tar"))
    flip(second.path / "config.json")  # where packages share files by links, it is damaged in both
    outcomes = import_bundle(tmp_path / "zoo.tar")
    size = second.file("config.json").stat().st_size
    assert sum(each.bytes_transferred for each in outcomes) == size
    assert first.verify() == second.verify() == []


def test_one_that_was_built_here_stays_ours_when_it_is_mended(tmp_path: Path) -> None:
    with Store().stage("build") as folder:
        make(folder, {"model.onnx.data": WEIGHTS})
        built = Store().promote(folder, Package.open(folder).build_key)
    export_bundle([built], tmp_path / "zoo.tar")
    flip(built.file("model.onnx.data"))
    assert import_bundle(tmp_path / "zoo.tar")[0].package == built
    assert built.verify() == []
    assert Store().is_built_here(built.build_key)


def test_another_build_of_the_key_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    with Store().stage("build") as folder:
        make(folder, {"model.onnx.data": WEIGHTS})
        built = Store().promote(folder, Package.open(folder).build_key)
    other = make(tmp_path / "other", {"model.onnx.data": noise(300_000, 1)})
    export_bundle([other], tmp_path / "zoo.tar")
    assert import_bundle(tmp_path / "zoo.tar")[0].package == built  # as good, while it is whole
    flip(built.file("model.onnx.data"))
    (imported,) = import_bundle(tmp_path / "zoo.tar")
    assert contents(imported.package) == contents(other)
    assert not Store().is_built_here(built.build_key)


@pytest.mark.usefixtures("no_sockets")
def test_a_repair_names_the_bundle_to_import_again(
    packages: list[Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_ZOO_STORES", "hf://acme/zoo")
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    file = tmp_path / "the zoo.tar"
    export_bundle(packages[:1], file)
    flip(import_bundle(file)[0].package.file("model.onnx.data"))
    (outcome,) = repair([])
    assert f"run `qeff-zoo bundle import '{file}'` again" in (outcome.error or "")
    assert import_bundle(file)[0].bytes_transferred == len(WEIGHTS)
    assert repair([])[0].problems == []


def test_a_bundle_that_is_damaged_too_changes_nothing(
    packages: list[Package], tmp_path: Path
) -> None:
    export_bundle(packages[1:], tmp_path / "zoo.tar")
    there = import_bundle(tmp_path / "zoo.tar")[0].package
    flip(there.file("model.onnx.data"))
    damaged = contents(there)
    bad = changed("model.onnx.data", lambda content: content[:-1] + b"x")(good(packages[1]))
    write(tmp_path / "bad.tar", bad)
    with pytest.raises(RemoteError, match="also when fetched again"):
        import_bundle(tmp_path / "bad.tar")
    assert contents(there) == damaged


# --- killed ----------------------------------------------------------------------------------------


def test_an_import_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, package = tmp_path / "zoo.tar", make(tmp_path / "one", {"model.onnx.data": WEIGHTS})
    export_bundle([package], file)
    argv, sizes = ["bundle", "import", str(file)], [100_000, 299_999]
    runs = kill(argv, empty(tmp_path), tmp_path / "places", most=30, sizes=sizes)
    assert len(runs) == 33 if selection.EVERY else len(runs) > 6
    for run in runs:
        monkeypatch.setenv("QEFF_HOME", str(run.place / "home"))
        assert_recovers(package, lambda: import_bundle(file)[0])


def test_an_export_that_is_killed(packages: list[Package], tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    old = tmp_path / "before" / "zoo.tar"
    export_bundle(packages[:1], old)
    argv = ["bundle", "export", str(packages[1].path), "-o", "{place}/zoo.tar"]
    whole, *killed = kill(argv, tmp_path / "before", tmp_path / "places", sizes=[20_000, 200_000])
    assert {run.at for run in killed} >= {"open", "os.rename", "size"}
    new = (whole.place / "zoo.tar").read_bytes()
    for run in killed:
        file = run.place / "zoo.tar"
        assert file.read_bytes() in (old.read_bytes(), new)
        export_bundle(packages[1:], file)
        assert file.read_bytes() == new
        assert [path.name for path in run.place.iterdir()] == ["zoo.tar"]


# --- bundles that anyone may have made -------------------------------------------------------------

Member = tuple[str, bytes, dict[str, Any]]


def write(path: Path, members: list[Member]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content, facts in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for fact, value in facts.items():
                setattr(info, fact, value)
            tar.addfile(info, io.BytesIO(content))


def good(package: Package) -> list[Member]:
    return [(name, content, {}) for name, content in remote(package).items()]


BAD: dict[str, Member] = {
    "parent": ("../escape", b"x", {}),
    "absolute": ("/tmp/qeff-zoo-escape", b"x", {}),
    "inner-parent": ("packages/a/../../escape", b"x", {}),
    "backslash": ("packages\\escape", b"x", {}),
    "control": ("packages/\x1b[2J", b"x", {}),
    "stranger": ("escape", b"x", {}),
    "other-package": ("packages/other/0123456789abcdef/manifest.json", b"{}", {}),
    "symbolic-link": ("packages/link", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
    "hard-link": ("packages/link", b"", {"type": tarfile.LNKTYPE, "linkname": INDEX_NAME}),
    "device": ("packages/device", b"", {"type": tarfile.CHRTYPE}),
    "pipe": ("packages/pipe", b"", {"type": tarfile.FIFOTYPE}),
    "folder": ("packages/folder", b"", {"type": tarfile.DIRTYPE}),
    "sparse": ("packages/sparse", b"", {"type": tarfile.GNUTYPE_SPARSE}),
    "twice": (INDEX_NAME, b"x", {}),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_members_are_refused_before_anything_is_taken(
    packages: list[Package], tmp_path: Path, kind: str
) -> None:
    write(tmp_path / "bad.tar", [*good(packages[1]), BAD[kind]])
    with pytest.raises(RemoteError, match="Cannot import the bundle"):
        import_bundle(tmp_path / "bad.tar")
    assert not Store().root.exists()
    assert not list(tmp_path.rglob("*escape"))
    assert not Path("/tmp/qeff-zoo-escape").exists()


def without(name: str) -> Callable[[list[Member]], list[Member]]:
    return lambda members: [member for member in members if not member[0].endswith(name)]


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[list[Member]], list[Member]]:
    return lambda members: [
        (path, change(content) if path.endswith(name) else content, facts)
        for path, content, facts in members
    ]


@pytest.mark.parametrize(
    "change",
    [
        without(INDEX_NAME), without(MANIFEST_NAME), without("model.onnx"), changed(INDEX_NAME, lambda _: b"x"),
        changed(MANIFEST_NAME, lambda content: content + b" "), changed("model.onnx", lambda _: b"swapp"),
        changed("model.onnx.data", lambda content: content[:-1] + b"x"),
        changed("model.onnx.data", lambda content: content + b"x"),
        changed("model.onnx.data", lambda content: content[:-1]), lambda _: [],
    ],
    ids=["no-index", "no-manifest", "no-graph", "other-index", "other-manifest", "other-graph", "corrupt", "longer",
         "shorter", "empty"],
)  # fmt: skip
def test_bundles_that_lack_or_change_something_give_nothing(
    packages: list[Package], tmp_path: Path, change: Callable[[list[Member]], list[Member]]
) -> None:
    write(tmp_path / "bad.tar", change(good(packages[1])))
    with pytest.raises(RemoteError):
        import_bundle(tmp_path / "bad.tar")
    assert not any((Store().root / "packages").glob("*"))
    write(tmp_path / "good.tar", good(packages[1]))
    assert import_bundle(tmp_path / "good.tar")[0].package.verify() == []


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.9])
def test_truncated_bundles_are_refused(
    packages: list[Package], tmp_path: Path, share: float
) -> None:
    path = tmp_path / "zoo.tar"
    export_bundle(packages[1:], path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(RemoteError):
        import_bundle(path)
    assert not any((Store().root / "packages").glob("*"))


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 2000, gzip.compress(bytes(10240))],
    ids=["empty", "text", "compressed"],
)
def test_invalid_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "no.tar").write_bytes(content)
    with pytest.raises(RemoteError):
        import_bundle(tmp_path / "no.tar")


def test_a_missing_file_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="No such file"):
        import_bundle(tmp_path / "no.tar")


def test_a_bundle_that_goes_away_is_an_error_of_ours(
    packages: list[Package], tmp_path: Path
) -> None:
    export_bundle(packages, tmp_path / "zoo.tar")
    snapshot = bundle.open_bundle(tmp_path / "zoo.tar")
    (tmp_path / "zoo.tar").unlink()
    with pytest.raises(RemoteError, match="No such file"):
        snapshot.read(INDEX_NAME, limit=10**6)


def test_no_header_may_fill_the_memory(packages: list[Package], tmp_path: Path) -> None:
    def headers() -> Iterator[Member]:
        yield from good(packages[1])
        yield "x", bytes(3 << 20), {"type": tarfile.XHDTYPE}  # a header of 3 MiB

    write(tmp_path / "bad.tar", [*headers()])
    with pytest.raises(RemoteError, match="a header of"):
        import_bundle(tmp_path / "bad.tar")


def test_an_index_that_lies_is_refused(packages: list[Package], tmp_path: Path) -> None:
    files = remote(packages[1])
    entry = replace(entry_of(packages[1]), model="org/better")
    files[INDEX_NAME] = encode(Index().with_entry(entry))
    write(tmp_path / "bad.tar", [(name, content, {}) for name, content in files.items()])
    with pytest.raises(RemoteError, match="its model is 'org/better'"):
        import_bundle(tmp_path / "bad.tar")
