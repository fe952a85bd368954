# SPDX-License-Identifier: Apache-2.0
"""A compiled schema accepts what jsonschema accepts, and nothing else."""

import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_index import ENTRY
from package_builder import fill

from qeff_zoo.hub import index_files
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.index_tree import Page, Reference
from qeff_zoo.package import manifest, prepared, schemas

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.0, 1.5, 10**40, "", "x", "x\n", "\x1b", "é" * 300, "0" * 64, [], [1], ["x"] * 70,
    {}, {"x": 1}, {"x": "y"}, [[]], {"state": "yanked"},
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """List every container with each key or position in it."""
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(member, dict | list):
            yield from places(member)


def mutant(value: Any, draw: random.Random) -> Any:
    changed = copy.deepcopy(value)
    container, key = draw.choice([*places(changed)])
    change = draw.randrange(3)
    if change == 0:
        container[key] = draw.choice(VALUES)
    elif change == 1:
        del container[key]
    elif isinstance(container, dict):
        container[draw.choice(["", "x", "schema", "prefix", "\n"])] = draw.choice(VALUES)
    else:
        container.extend([draw.choice(VALUES)] * draw.choice([1, 300]))
    return changed


def index_file(index: Index) -> Any:
    return json.loads(gzip.decompress(index_files.encode(index)))


@pytest.mark.parametrize("kind", ["manifest", "index", "page"])
def test_compiled_schema_agrees_with_jsonschema(kind: str, tmp_path: Path) -> None:
    index = Index().with_entry(ENTRY).with_notice(ENTRY.path, Notice("yanked", "x"))
    kinds: dict[str, Callable[[], tuple[Path, Any]]] = {
        "manifest": lambda: (manifest.SCHEMA, dict(fill(tmp_path / "package").manifest)),
        "index": lambda: (index_files._SCHEMA, index_file(index)),
        "page": lambda: (
            index_files._SCHEMA,
            index_file(Index(1, Page({"0": Reference("a" * 64, 3)}))),
        ),
    }
    path, value = kinds[kind]()
    draw, refused = random.Random(0), 0
    assert not [*schemas.violations(path, value)]
    for _ in range(150):
        changed = mutant(value, draw)
        accepted = schemas._compiled(path)(changed)
        assert accepted == schemas.validator(path).is_valid(changed), changed
        refused += not accepted
    assert 50 < refused < 150


def test_every_schema_is_compiled_and_an_unknown_keyword_is_reported() -> None:
    for path in (manifest.SCHEMA, prepared._SCHEMA, index_files._SCHEMA):
        assert not schemas._compiled(path)([])
        assert [*schemas.violations(path, [])]
    with pytest.raises(ValueError, match="patternProperties"):
        schemas._check({"patternProperties": {}})
