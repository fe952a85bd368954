# SPDX-License-Identifier: Apache-2.0
"""Values that nobody expects, and where to put them: what the fuzz tests of tests/hostile have in common.

QEFF_ZOO_TEST_EVERY=1 tries all of them, not a tenth, and QEFF_ZOO_TEST_CASES=5000 that many with each reader.
"""

import copy
import os
import pathlib
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import selection
from hypothesis import settings
from hypothesis import strategies as st

SECONDS = 2.0  # for one case; it takes milliseconds


def example_count(usual: int) -> int:
    """Return how many cases a test tries: a tenth of the usual number by default."""
    return int(os.environ.get("QEFF_ZOO_TEST_CASES", selection.few(usual)))


@contextmanager
def allocating(most: int) -> Iterator[None]:
    """Check that no more is ever allocated at a time, in bytes."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
        if peak > most:
            held = tracemalloc.take_snapshot().statistics("filename")
            # Paths are interned; the table of all that is grows in one step, to many megabytes after many cases.
            interned = [one.size for one in held if one.traceback[0].filename == pathlib.__file__]
            assert peak - sum(interned) <= most, [*map(str, held[:5])]
    finally:
        tracemalloc.stop()


CASES = settings(max_examples=example_count(1000), derandomize=True, database=None)


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


def changes(value: Any, part: str = "") -> st.SearchStrategy[list[tuple[tuple[Any, ...], Any]]]:
    """Change a value, or a part of it, in one place or two."""
    known = [path for path in places(value) if not part or path[0] == part]
    return st.lists(st.tuples(st.sampled_from(known), VALUES), min_size=1, max_size=2)


def changed(value: Any, made: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """Return a value with such changes."""
    value = copy.deepcopy(value)
    for path, new in made:
        put(value, path, new)
    return value
