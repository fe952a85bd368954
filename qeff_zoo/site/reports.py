# SPDX-License-Identifier: Apache-2.0
"""Failed builds: the red cells in reports of `qeff-zoo farm run --json`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo import targets
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import PackageError
from qeff_zoo.hub.entries import key16_of
from qeff_zoo.site import words
from qeff_zoo.site.content import LEVELS, Comparison

#: Schema of a report.
SCHEMA_ID = "qeff-farm/1"
_RED = "red"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A package that a farm could not make.

    Args:
        model: Name of the model.
        model_type: Model type of its checkpoint; empty if it could not be opened.
        key16: First 16 hex digits of the build key; empty without a plan.
        comparison: The failure, for the page of the model.
    """

    model: str
    model_type: str
    key16: str
    comparison: Comparison


def read_report(file: Path) -> Iterator[Failure]:
    """Yield the failures in a farm's report.

    Args:
        file: Path of the file.

    Raises:
        PackageError: The file is no report, or a newer version wrote it.
    """
    try:
        content = json.loads(read_regular(file))
        if (schema := content["schema"]) != SCHEMA_ID:
            raise PackageError(
                f"{str(file)!r} has schema {str(schema)[:40]!r}; expected {SCHEMA_ID!r}. Another version of qeff-zoo "
                "wrote it: run the farm again, or install that version."
            )
        yield from [_failure(cell, content) for cell in content["cells"] if cell["state"] == _RED]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PackageError(
            f"{str(file)!r} is no report of a farm: {type(error).__name__}: {str(error)[:200]}. Expected the output of "
            "`qeff-zoo farm run ZOO --json`. Correct --report."
        ) from error


def _failure(cell: dict[str, Any], report: dict[str, Any]) -> Failure:
    options = cell["options"]
    return Failure(
        model=str(cell["model"]),
        model_type=str(cell["model_type"]),
        key16=key16_of(str(cell["build_key"])),
        comparison=Comparison(
            what="build",
            target=str(cell["target"] or options.get("target", targets.NAMES[0])),
            weights=str(options.get("weights", "")),
            level=LEVELS[0],
            passed=False,
            when=str(report["finished"]),
            why=words.reason(str(cell["why"])) or "It failed.",
            sentences=(f"Options: {_line(options)}.",) if options else (),
        ),
    )


def _line(options: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {','.join(map(str, it)) if isinstance(it, list) else it}"
        for name, it in options.items()
    )[:200]
