# SPDX-License-Identifier: Apache-2.0
"""Faults that validation detects: the table of docs/validation.md, and the sentence of the README.

Their source is docs/package_faults.json, which `scripts/package_faults.py --json` writes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from documentation.tables import table

RESULTS = Path(__file__).parents[2] / "docs" / "package_faults.json"
_KINDS = {
    "graph": "the graph",
    "calls": "calls",
    "weights": "stored weights",
    "text": "tokenizer and settings",
}
_MOST = 1e8  # times: from here on a value is no number, or none is allowed

Results = Mapping[str, Sequence[Mapping[str, Any]]]


def results(path: Path = RESULTS) -> Results:
    """Return the results of each package by its title, the right package first."""
    found: Results = json.loads(path.read_bytes())
    return found


def faults(found: Results) -> str:
    """Return a row for each fault and a column for each package: the error in units of what is allowed.

    Args:
        found: See `results`.
    """
    by_title = {title: {one["fault"]: one for one in every} for title, every in found.items()}
    words = {one["fault"]: one["kind"] for every in found.values() for one in every if one["kind"]}
    order = sorted(words, key=lambda fault: [*_KINDS].index(words[fault]))
    rows = [
        [fault, _KINDS[words[fault]], *(_cell(value.get(fault)) for value in by_title.values())]
        for fault in order
    ]
    right = ["none", "", *(_cell(value.get("nothing")) for value in by_title.values())]
    return table(["fault", "of", *by_title], [right, *rows])


def _cell(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    times = one["times"]
    size = "differs" if times is None else "no number" if times > _MOST else f"{times:,.2g}"
    if one["kind"] and not one["noticed"]:
        return f"**missed** ({size})"
    return f"{times:,.0f}" if times and 100 <= times <= _MOST else size


def sentences(found: Results) -> str:
    """Return a sentence for each package.

    Args:
        found: See `results`.
    """
    return " ".join(_sentences(found))


def _sentences(found: Results) -> Iterator[str]:
    for title, (right, *every) in found.items():
        measured = [one for one in every if one["times"] is not None]
        least = min(measured, key=lambda one: float(one["times"]))
        yield (
            f"Validation detects {sum(one['noticed'] for one in every)} of {len(every)} faults that are put into "
            f"{title}; the slightest one ({least['fault']}) is {least['times']:.3g} times as large as what is allowed, "
            f"the error of the right package {right['times']:.2g} times."
        )
