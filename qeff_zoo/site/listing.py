# SPDX-License-Identifier: Apache-2.0
"""Listing of all models: compact rows in shards, which the start page searches and the JSON API has."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qeff_zoo.site.content import LEVELS, PROVED, Model, Zoo
from qeff_zoo.terminal.sanitize import shown

SCHEMA_ID = "qeff-site/1"
COLUMNS = ("name", "page", "task", "architecture", "license", "size", "weights", "cells")
#: Rows up to which the start page has the whole listing in itself.
INLINE = 300
_SHARD = 2000  # rows
#: Bytes of shards that the start page loads at once; others are loaded when a search needs them.
EAGER_BYTES = 850_000


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The listing, and its files.

    Args:
        head: Content of `index.json`.
        rows: All rows, in the order of the models.
        shards: Content of each other file, by its name.
    """

    head: dict[str, Any]
    rows: Sequence[list[Any]]
    shards: dict[str, str]

    def embedded(self) -> dict[str, Any]:
        """Return what the start page has in itself."""
        small = len(self.rows) <= INLINE
        return {
            **self.head,
            "rows": self.rows if small else [],
            **({"shards": []} if small else {}),
        }


def listing(zoo: Zoo) -> Listing:
    """Return the listing of a site."""
    tasks = _distinct(model.task for model in zoo.models)
    architectures = _distinct(model.architecture for model in zoo.models)
    licenses = _distinct(model.license for model in zoo.models)
    weights = _distinct(weight for model in zoo.models for weight in model.weights)
    positions = [
        {value: at for at, value in enumerate(values)}
        for values in (tasks, architectures, licenses, weights)
    ]
    rows = [_row(model, *positions) for model in zoo.models]
    shards: dict[str, str] = {}
    listed, loaded = [], 0
    for number, start in enumerate(range(0, len(rows), _SHARD)):
        part = rows[start : start + _SHARD]
        name = f"models-{number}.json"
        shards[name] = dump({"schema": SCHEMA_ID, "rows": part})
        listed.append(
            {
                "file": name,
                "first": part[0][0].lower(),
                "last": part[-1][0].lower(),
                "count": len(part),
            }
        )
    eager = 0
    for content in shards.values():
        loaded += len(content.encode())
        if loaded > EAGER_BYTES:
            break
        eager += 1
    head = {
        "schema": SCHEMA_ID,
        "title": zoo.title,
        "count": len(rows),
        "columns": list(COLUMNS),
        "targets": list(zoo.targets),
        "levels": list(LEVELS),
        "tasks": tasks,
        "architectures": architectures,
        "licenses": licenses,
        "weights": weights,
        "remotes": list(zoo.remotes),
        "shards": listed,
        "eager": eager,
    }
    return Listing(head=head, rows=rows, shards=shards)


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted({shown(value) for value in values})


def _row(
    model: Model,
    tasks: dict[str, int],
    architectures: dict[str, int],
    licenses: dict[str, int],
    weights: dict[str, int],
) -> list[Any]:
    cells = ""
    for cell in model.cells:
        letter = cell.state[0]
        partly = cell.state == PROVED and cell.red
        cells += f"{letter.upper() if partly else letter}{LEVELS.index(cell.level)}"
    return [
        shown(model.name),
        "" if model.page == model.name else model.page,
        tasks[shown(model.task)],
        architectures[shown(model.architecture)],
        licenses[shown(model.license)],
        model.size or 0,
        sum(1 << weights[shown(weight)] for weight in model.weights),
        cells,
    ]


def dump(content: Any) -> str:
    """Write JSON without spaces; an object with fields becomes an object of JSON."""
    return json.dumps(
        content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=vars
    )
