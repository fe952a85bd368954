# SPDX-License-Identifier: Apache-2.0
"""What costs much to look at is refused before it is looked at: large manifests, endless templates, absurd configs."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from package_builder import FILES, fill

from qeff_zoo.errors import PackageError
from qeff_zoo.identity import tree_digest
from qeff_zoo.package import Package, files
from qeff_zoo.package.manifest import MANIFEST_NAME, dump, problems


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.process_time()
    yield
    assert time.process_time() - begun < seconds


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return fill(tmp_path / "package")


def listing(package: Package, count: int, folder: str = "") -> dict[str, Any]:
    """Make the package's manifest list that many more files."""
    manifest = copy.deepcopy(dict(package.manifest))
    more = ({**manifest["files"][0], "path": f"{folder}{number}"} for number in range(count))
    manifest["files"] += more
    manifest["tree"] = tree_digest(manifest["files"])
    return manifest


# --- manifests ------------------------------------------------------------------------------------


def test_a_manifest_lists_no_more_files_than_can_be_looked_at(package: Package) -> None:
    (package.path / MANIFEST_NAME).write_bytes(dump(listing(package, 70_000)))
    with (
        within(5),
        pytest.raises(PackageError, match=r"\$\.files has 70,007 entries, more than 10,000"),
    ):
        Package.open(package.path)


def test_looking_for_files_in_deep_folders_takes_no_longer_for_each(package: Package) -> None:
    manifest = listing(package, 5_000, "a/" * 115)
    with within(1):
        found = files.misplaced(package.path, manifest["files"])
    assert len(found) == 5_000


@pytest.mark.parametrize("wrong", [1, {"path": 1, "size": "", "digest": None, "role": []}])
def test_of_many_problems_a_hundred_are_found(package: Package, wrong: Any) -> None:
    manifest = {**package.manifest, "files": [wrong] * 9_000}
    with within(0.5):
        assert len(problems(manifest)) == 100


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (list(range(600_000)), "it has more than 500,000 values"),
        ("x" * 10_001, "it has a text of 10,001 characters, more than 10,000"),
        ({"x" * 10_001: 1}, "it has a text of 10,001 characters, more than 10,000"),
        (1 << 63, "it has an integer of more than 64 bits"),
    ],
)
def test_what_no_package_needs_is_refused_at_once(
    package: Package, value: Any, reason: str
) -> None:
    manifest = {**package.manifest, "spec": {"npi": value}}
    with within(1):
        assert problems(manifest) == [reason]


def test_the_limits_are_far_from_what_packages_have(package: Package) -> None:
    manifest = listing(package, 9_000, "qpc/a folder/with a name/")
    assert len(manifest["files"]) > 500 * len(FILES)
    with within(5):
        assert problems(manifest) == []
