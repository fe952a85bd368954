# SPDX-License-Identifier: Apache-2.0
"""The table of QEfficient's example scripts in docs/from-qefficient.md, from the recorded rows."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "qefficient_examples.json"
_MEANING = {
    "runs": "run",
    "refused": "are refused by name",
    "own code": "stop in their own code",
    "lacks": "lack torchvision",
    "fails": "fail",
    "too slow": "take too long",
}


def table(path: Path = RECORD) -> str:
    """Return counts, and a row for each script that does not run or was recorded with changes, in Markdown.

    Args:
        path: JSON file of the rows.
    """
    rows = json.loads(path.read_bytes())
    counts = Counter(row["result"] for row in rows)
    counted = ", ".join(
        f"{counts[result]} {text}" for result, text in _MEANING.items() if counts[result]
    )
    others = [
        [f"`{row['script']}`", row["result"], _reason(row)]
        for row in rows
        if row["result"] != "runs" or row["changes"]
    ]
    shown = tabulate(
        others, ("script", "result", "reason"), tablefmt="github", disable_numparse=True
    )
    changed = sum(row["result"] == "runs" and bool(row["changes"]) for row in rows)
    beside = ""
    if changed:
        beside = f"; {changed} of those that run were recorded with changes besides the import"
    return (
        f"Of {len(rows)} scripts, {counted}{beside}.\n\n{shown}"
        if others
        else f"All {len(rows)} scripts run."
    )


def _reason(row: Mapping[str, Any]) -> str:
    """Return why a script does not run, or what was changed in it besides the import."""
    reason = row["reason"] or f"recorded with {'; '.join(row['changes'])}"
    return str(reason).replace("|", "\\|")
