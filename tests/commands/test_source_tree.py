# SPDX-License-Identifier: Apache-2.0
"""Whether a checkout has changes that no commit has, and what becomes of packages that were built from such."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import package_builder
import pytest
from fixtures_builds import Models

from qeff_zoo import pipeline
from qeff_zoo.pipeline import manifest_entries
from qeff_zoo.pipeline.source_tree import has_uncommitted_changes
from qeff_zoo.plan.request import Request
from qeff_zoo.store import Store

REQUEST = Request(prefill_seq_len=8, ctx_len=32)


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    for name in ("qeff_zoo/one.py", "recipes/llama.py", "docs/hub.md", ".gitignore"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("*.pyc\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "all of it")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "dirty"),
    [
        ("qeff_zoo/one.py", True),
        ("recipes/llama.py", True),
        ("recipes/new.py", True),
        ("docs/hub.md", False),
        ("qeff_zoo/one.pyc", False),
    ],
)
def test_changes_of_sources_are_detected(checkout: Path, name: str, dirty: bool) -> None:
    assert not has_uncommitted_changes(checkout)
    (checkout / name).write_text("changed")
    assert has_uncommitted_changes(checkout) is dirty


def test_folder_without_git_has_no_changes(tmp_path: Path) -> None:
    (tmp_path / "qeff_zoo").mkdir()
    (tmp_path / "qeff_zoo/one.py").write_text("changed")
    assert not has_uncommitted_changes(tmp_path)


def test_a_package_of_changed_sources_is_built_again_once_they_are_committed(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path))
    models.trace(models.llama, tmp_path)

    def build(*, dirty: bool) -> tuple[bool, bool]:
        for module in (pipeline, manifest_entries):
            monkeypatch.setattr(module, "has_uncommitted_changes", lambda: dirty)
        built = pipeline.build(str(models.llama), REQUEST, validate=False)
        return built.hit, built.package.dirty

    assert build(dirty=True) == (False, True)
    assert build(dirty=True) == (True, True)
    assert build(dirty=False) == (False, False)
    assert build(dirty=True) == (True, False)


@pytest.fixture
def promote(tmp_path: Path) -> Callable[[bool], bool]:
    store = Store(tmp_path / "store")

    def promote_one(dirty: bool) -> bool:
        made = {**package_builder.draft()["provenance"], "dirty": dirty}
        with store.stage("test") as folder:
            package = package_builder.fill(folder, provenance=made)
            return store.promote(folder, package.build_key).dirty

    return promote_one


def test_the_store_keeps_what_others_can_build(promote: Callable[[bool], bool]) -> None:
    assert promote(True)
    assert not promote(False)
    assert not promote(True)
