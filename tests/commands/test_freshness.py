# SPDX-License-Identifier: Apache-2.0
"""Evidence ends with what it was made from: stale packages are validated again, and bad ones get a notice."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_builds import Models
from publications import folder_files

from qeff_zoo import cli, pipeline
from qeff_zoo.farm import zoo_file
from qeff_zoo.farm.estimates import BUILD, PUBLISH, VALIDATE
from qeff_zoo.farm.planning import MISSING, PUBLISHED, STALE, Cell, plan_farm
from qeff_zoo.farm.schedule import REVALIDATE, Result, Step
from qeff_zoo.farm.tasks import Options, run_step
from qeff_zoo.hub.entries import Notice, key16_of
from qeff_zoo.hub.index import INDEX_NAME
from qeff_zoo.hub.index_files import decode
from qeff_zoo.package import Package
from qeff_zoo.pipeline import manifest_entries
from qeff_zoo.pipeline.checks import source_of
from qeff_zoo.pipeline.proving import prove
from qeff_zoo.plan.request import Request
from qeff_zoo.store import Store
from qeff_zoo.targets import ort
from qeff_zoo.validation import ladder
from qeff_zoo.validation.judgement.freshness import staleness, versions_now
from qeff_zoo.validation.reference import preloaded

WHY = "onnxruntime 1.30.0, now 1.31.1"


@pytest.fixture(scope="module")
def proved(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store with a package that was built and validated by an older ONNX Runtime, as its spec has it."""
    home = tmp_path_factory.mktemp("proved")
    models.trace(models.llama, home)  # other tests share what it builds, with today's ONNX Runtime
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        patch.setattr(manifest_entries, "has_uncommitted_changes", lambda: False)
        resolve = ort.TARGET.resolve

        def older(*arguments: Any) -> Any:
            found = resolve(*arguments)
            return replace(found, toolchain={**found.toolchain, "onnxruntime": "1.30.0"})

        patch.setattr(type(ort.TARGET), "resolve", lambda _, *arguments: older(*arguments))
        built = pipeline.build(str(models.llama), Request(ctx_len=40), validate=False).package
        prove(built, source_of(built, None), Store(), threads=1)
    return home


@pytest.fixture
def package(proved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Package:
    """Give a copy of that package, in the store of the test."""
    home = shutil.copytree(proved, tmp_path / "home")
    monkeypatch.setenv("QEFF_HOME", str(home))
    (found,) = Store().packages()
    return found


def test_a_validation_of_its_own_adds_the_evidence(package: Package) -> None:
    assert package.validated == "checkpoint"
    assert all(check["passed"] for check in package.manifest["validation"])
    assert package.file("evidence").is_file()
    assert package.verify() == []
    assert Store().is_built_here(package.build_key)


def test_stale_evidence_has_a_reason(package: Package) -> None:
    assert staleness(package, Store()) == [WHY]
    Store().note_outcome(package.build_key, {"versions": versions_now(package)})
    assert staleness(package, Store()) == []


def test_stale_packages_are_validated_again_and_stay_as_they_are(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_files(package.path)

    assert cli.main(["validate", "--stale", "--json", "-q"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["stale"], found["passed"]) == ([WHY], True)
    assert folder_files(package.path) == before
    assert cli.main(["validate", "--stale", "-q"]) == 0
    assert capsys.readouterr().out == "No evidence is stale.\n"


def test_a_validation_needs_a_subject(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["validate"])

    assert caught.value.code == 2
    assert "required without --stale" in capsys.readouterr().err


# --- in a zoo -------------------------------------------------------------------------------------
def cell_of(folder: Path, models: Models) -> Cell:
    zoo = folder / "zoo.toml"
    zoo.write_text(
        f'remote = "./remote"\n[[models]]\nmodel = "{models.llama}"\n[[variants]]\nctx_len = 40\n'
    )
    (cell,) = plan_farm(zoo_file.read(zoo)).cells
    return cell


def revalidated(cell: Cell) -> Result:
    return run_step(Step(name=REVALIDATE, number=0, cell=cell), Options())


def publish(package: Package, folder: Path) -> None:
    assert cli.main(["publish", str(package.path), f"file://{folder}/remote"]) == 0


def test_a_stale_package_that_agrees_is_fresh_without_a_build(
    package: Package, tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloaded, "shared", lambda: None)  # a fork is in test_farm_runs
    publish(package, tmp_path)
    cell = cell_of(tmp_path, models)
    assert (cell.state, cell.why, cell.older_key) == (STALE, WHY, package.build_key)

    home = tmp_path / "home"
    home.rename(tmp_path / "aside")  # a machine that has the index alone
    there = cell_of(tmp_path, models)
    assert (there.state, there.why) == (STALE, WHY)
    assert there.older_path.startswith("packages/")
    shutil.rmtree(home)
    (tmp_path / "aside").rename(home)

    result = revalidated(cell)

    assert result.failure == ""
    assert result.versions["onnxruntime"] == "1.31.1"
    assert cell_of(tmp_path, models).state == PUBLISHED
    (entry,) = decode((tmp_path / "remote" / INDEX_NAME).read_bytes()).entries
    assert entry.tested["onnxruntime"] == "1.31.1"
    shutil.rmtree(tmp_path / "home")  # another machine sees it in the index
    assert cell_of(tmp_path, models).state == PUBLISHED


def test_a_stale_package_that_fails_becomes_known_bad_and_is_built_again(
    package: Package, tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloaded, "shared", lambda: None)
    publish(package, tmp_path)
    cell = cell_of(tmp_path, models)
    checks = [{**package.manifest["validation"][0], "passed": False, "value": 7.0}]
    record = ladder.Record(
        level="checkpoint", checks=checks, reported={}, versions={}, sequences=[], arrays={}
    )
    monkeypatch.setattr(ladder, "validate", lambda *_, **__: record)

    result = revalidated(cell)

    assert result.failure == "ParityError"
    assert "is 7.0, expected" in result.reason
    index = decode((tmp_path / "remote" / INDEX_NAME).read_bytes())
    (notice,) = index.notices.values()
    assert notice.state == "known_bad"
    assert "onnxruntime 1.31.1" in notice.reason
    assert cell_of(tmp_path, models).state == MISSING


def test_a_package_that_is_built_again_supersedes_the_earlier_one(
    package: Package, tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_entries, "has_uncommitted_changes", lambda: False)
    monkeypatch.setattr(preloaded, "shared", lambda: None)
    record = ladder.Record(
        level="checkpoint", checks=package.manifest["validation"], reported={}, versions={}, sequences=[], arrays={},
    )  # fmt: skip
    monkeypatch.setattr(ladder, "validate", lambda *_, **__: record)
    publish(package, tmp_path)
    cell = cell_of(tmp_path, models)
    for name in (BUILD, VALIDATE, PUBLISH, PUBLISH):  # the second finds all of it there
        result = run_step(Step(name=name, number=0, cell=cell), Options())
        assert result.failure == "", result.reason

    index = decode((tmp_path / "remote" / INDEX_NAME).read_bytes())
    ((path, notice),) = index.notices.items()
    newer = next(entry.path for entry in index.entries if entry.path != path)
    assert path.endswith(key16_of(package.build_key))
    assert notice == Notice("superseded", f"Built again with other software: {WHY}", newer)
    assert index.serial == 2
    assert cell_of(tmp_path, models).state == PUBLISHED
