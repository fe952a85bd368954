# SPDX-License-Identifier: Apache-2.0
"""Whatever a manifest says, opening and explaining the package gives a package or a PackageError, quickly."""

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from package_builder import fill

from qeff_zoo.errors import PackageError
from qeff_zoo.escapes import shown
from qeff_zoo.identity import build_key, tree_digest
from qeff_zoo.package import Package
from qeff_zoo.package.description import describe
from qeff_zoo.package.manifest import MANIFEST_NAME, dump
from qeff_zoo.package.programs import key_of

SECONDS = 2.0  # for one case; it takes milliseconds
CASES = settings(
    max_examples=2000,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


with TemporaryDirectory() as _folder:
    MANIFEST = json.loads(dump(fill(Path(_folder)).manifest))


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, -0.0, 1e308, 2**53, 2**63, -(10**400), "", "x" * 241, "x" * 20_000, "1" * 5000, "9" * 12,
    "\x1b[2J", "\u202egnp.exe", "\x00", "../x", "~/x", "/etc/passwd", "ł" * 200, "sha256:" + "0" * 64, "\u2028", "{}",
    [], {}, [[]], [{}], {"": ""}, [1] * 2000, {str(number): 1 for number in range(1100)}, deep(20), deep(40),
)  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    made = fill(tmp_path_factory.mktemp("fuzzed"))
    assert made.manifest == MANIFEST
    return made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the paths of all that a value holds."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in members:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))


def put(manifest: Any, path: tuple[Any, ...], value: Any) -> None:
    """Change what lies at a path, if it is still there; `...` for the value removes it."""
    with suppress(LookupError, TypeError):
        for part in path[:-1]:
            manifest = manifest[part]
        if value is ...:
            del manifest[path[-1]]
        else:
            manifest[path[-1]] = copy.deepcopy(value)


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.sampled_from((..., *ODD)) | NUMBERS | st.text(max_size=20)


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


def changes(part: str = "") -> st.SearchStrategy[list[tuple[tuple[Any, ...], Any]]]:
    """Change a manifest, or a part of it, in one place or two."""
    known = [path for path in places(MANIFEST) if not part or path[0] == part]
    return st.lists(st.tuples(st.sampled_from(known), VALUES), min_size=1, max_size=2)


def changed(made: list[tuple[tuple[Any, ...], Any]]) -> Any:
    manifest = copy.deepcopy(MANIFEST)
    for path, value in made:
        put(manifest, path, value)
    return manifest


@CASES
@given(made=changes(), damage=st.none() | st.tuples(st.integers(0, 4000), st.binary(max_size=3)))
@example(made=[(("files", 0, "path"), "ł" * 200)], damage=None)
@example(made=[(("spec", "sources"), {"\x1f": None})], damage=None)
@example(made=[(("provenance", "peak_rss_bytes"), 10**400)], damage=None)
@example(
    made=[(("programs", 0, "specializations", 0, "symbols", "ctx_len"), "1" * 5000)], damage=None
)
@example(made=[(("why",), {str(number): "" for number in range(200_000)})], damage=None)
def test_manifest(package: Package, made: Any, damage: tuple[int, bytes] | None) -> None:
    content = json.dumps(changed(made)).encode()
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
@given(made=changes("spec"))
@example(made=[(("spec", "sources"), "org/name")])
@example(made=[(("spec", "sources", "model"), "org/name")])
@example(made=[(("spec", "toolchain"), "torch 2.13.0")])
@example(made=[(("spec", "toolchain"), {"onnxruntime": ["1.31"]})])
@example(made=[(("spec",), deep(100))])
def test_spec(package: Package, made: Any) -> None:
    read(package, json.dumps(rekeyed(changed(made))).encode())
