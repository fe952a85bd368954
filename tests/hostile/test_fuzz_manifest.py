# SPDX-License-Identifier: Apache-2.0
"""Whatever a manifest says, opening and explaining the package gives a package or a PackageError, quickly."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fuzzing import CASES, SECONDS, changed, changes, deep
from hypothesis import example, given
from hypothesis import strategies as st
from package_builder import fill

from qeff_zoo.cli.description import describe
from qeff_zoo.errors import PackageError
from qeff_zoo.package import Package
from qeff_zoo.package.identity import build_key, tree_digest
from qeff_zoo.package.manifest import MANIFEST_NAME, dump
from qeff_zoo.package.programs import key_of
from qeff_zoo.terminal.sanitize import shown

with TemporaryDirectory() as _folder:
    MANIFEST = json.loads(dump(fill(Path(_folder)).manifest))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    made = fill(tmp_path_factory.mktemp("fuzzed"))
    assert made.manifest == MANIFEST
    return made


def read(package: Package, content: bytes) -> None:
    """Open a package that has another manifest now, and use all that opening it has checked."""
    (package.path / MANIFEST_NAME).write_bytes(content)
    begun = time.process_time()
    message = ""
    try:
        opened = Package.open(package.path)
    except PackageError as error:
        message = str(error)
    else:
        assert opened.size >= 0
        assert describe(opened)
        assert opened.program(opened.programs[0].role).ctx_len >= 0
    assert message == shown(message)
    assert len(message) < 4000
    assert time.process_time() - begun < SECONDS


@CASES
@given(
    made=changes(MANIFEST),
    damage=st.none() | st.tuples(st.integers(0, 4000), st.binary(max_size=3)),
)
@example(made=[(("files", 0, "path"), "ł" * 200)], damage=None)
@example(made=[(("spec", "sources"), {"\x1f": None})], damage=None)
@example(made=[(("provenance", "peak_rss_bytes"), 10**400)], damage=None)
@example(
    made=[(("programs", 0, "specializations", 0, "symbols", "ctx_len"), "1" * 5000)], damage=None
)
@example(made=[(("why",), {str(number): "" for number in range(200_000)})], damage=None)
def test_manifest(package: Package, made: Any, damage: tuple[int, bytes] | None) -> None:
    content = json.dumps(changed(MANIFEST, made)).encode()
    if damage:
        content = content[: damage[0]] + damage[1] + content[damage[0] + 1 :]
    read(package, content)


def rekeyed(manifest: dict[str, Any]) -> dict[str, Any]:
    """Give a manifest the keys that its spec, programs and files make, where they make any."""
    made: list[tuple[Any, str, Callable[[], str]]] = [
        (manifest, "build_key", lambda: build_key(manifest["spec"])),
        (manifest, "tree", lambda: tree_digest(manifest["files"])),
        *(
            (entry, "program_key", lambda entry=entry: key_of(entry))
            for entry in manifest["programs"]
        ),
    ]
    for place, name, key in made:
        try:
            place[name] = key()
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            continue  # it has none, which opening it must say
    return manifest


@CASES
@given(made=changes(MANIFEST, "spec"))
@example(made=[(("spec", "sources"), "org/name")])
@example(made=[(("spec", "sources", "model"), "org/name")])
@example(made=[(("spec", "toolchain"), "torch 2.13.0")])
@example(made=[(("spec", "toolchain"), {"onnxruntime": ["1.31"]})])
@example(made=[(("spec",), deep(100))])
def test_spec(package: Package, made: Any) -> None:
    read(package, json.dumps(rekeyed(changed(MANIFEST, made))).encode())
