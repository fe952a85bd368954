# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from local_hub import LocalHub
from publications import assert_whole, folder_files
from remote_builder import entry_of, make, write_remote

from qeff_zoo import cli
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.index_files import decode
from qeff_zoo.hub.publish.notice import publish_notice
from qeff_zoo.package import Package
from qeff_zoo.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def packages(tmp_path: Path) -> list[Package]:
    return [make(tmp_path / str(size), ctx_len=size) for size in (1024, 2048)]


@pytest.fixture
def source(tmp_path: Path, packages: list[Package], home: Path) -> Path:
    write_remote(tmp_path / "source", *packages)
    return tmp_path / "source"


def copy(source: Path, where: str, *more: str, code: int = 0) -> None:
    assert cli.main(["copy", source.as_uri(), where, *more, "--quiet"]) == code


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_a_mirror_has_the_very_same_packages(
    kind: str, source: Path, packages: list[Package], alice: LocalHub, tmp_path: Path
) -> None:
    """Those of others, too, which `publish` would refuse."""
    where = "alice/mirror" if kind == "hub" else (tmp_path / "mirror").as_uri()
    for _ in range(2):  # the second time there is nothing to do
        copy(source, where)
        files = alice.files(where) if kind == "hub" else folder_files(tmp_path / "mirror")
        index = assert_whole(files, *packages)
        assert index == decode((source / INDEX_NAME).read_bytes())


def test_copy_includes_the_notices(source: Path, packages: list[Package], tmp_path: Path) -> None:
    worse, better = (entry_of(package).path for package in packages)
    publish_notice(source.as_uri(), worse, "superseded", reason="slow", instead=better)
    copy(source, (tmp_path / "mirror").as_uri())
    assert (
        decode((tmp_path / "mirror" / INDEX_NAME).read_bytes()).notices
        == decode((source / INDEX_NAME).read_bytes()).notices
    )
    copy(source, (tmp_path / "one").as_uri(), "--key", worse)
    (notice,) = decode((tmp_path / "one" / INDEX_NAME).read_bytes()).notices.values()
    assert (notice.state, notice.instead) == ("superseded", None)


def test_some_packages(
    source: Path, packages: list[Package], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = (tmp_path / "mirror").as_uri()
    copy(source, where, "--dry-run", "--json")
    assert [each["url"] for each in json.loads(capsys.readouterr().out)] == ["", ""]
    assert not (tmp_path / "mirror").exists()
    copy(source, where, "org/tiny", "--key", packages[1].build_key)
    assert_whole(folder_files(tmp_path / "mirror"), packages[1])
    for wrong in (["org/none"], ["--key", "f" * 16]):
        copy(source, where, *wrong, code=1)
    copy(tmp_path / "nothing", where, code=1)
    copy(source, "https://host/zoo", code=1)


def test_a_package_that_was_changed_is_not_mirrored(
    source: Path, packages: list[Package], tmp_path: Path
) -> None:
    path = source / entry_of(packages[0]).path / "model.onnx.data"
    path.write_bytes(bytes(path.stat().st_size))
    copy(source, (tmp_path / "mirror").as_uri(), code=1)
    assert not (tmp_path / "mirror" / INDEX_NAME).exists()


def test_ones_own_build_of_the_same_key_stays(
    source: Path, packages: list[Package], tmp_path: Path
) -> None:
    later = {**packages[0].manifest["provenance"], "finished": "2026-12-01T00:00:00Z"}
    ours = make(tmp_path / "ours", ctx_len=1024, provenance=later)
    store = Store()
    with store.stage("build") as folder:
        for file in ours.path.rglob("*"):
            if file.is_file():
                target = folder / file.relative_to(ours.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
        store.promote(folder, ours.build_key)
    assert ours.build_key == packages[0].build_key
    copy(source, (tmp_path / "mirror").as_uri(), code=1)
    assert store.is_built_here(ours.build_key)
