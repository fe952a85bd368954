# SPDX-License-Identifier: Apache-2.0
"""The table of QEfficient's example scripts in docs/from-qefficient.md, from the recorded rows."""

import json
from collections import Counter
from pathlib import Path

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
    """Return counts, and a row for each script that does not run, in Markdown.

    Args:
        path: JSON file of the rows.
    """
    rows = json.loads(path.read_bytes())
    counts = Counter(row["result"] for row in rows)
    counted = ", ".join(
        f"{counts[result]} {text}" for result, text in _MEANING.items() if counts[result]
    )
    others = [
        [f"`{row['script']}`", row["result"], row["reason"].replace("|", "\\|")]
        for row in rows
        if row["result"] != "runs"
    ]
    shown = tabulate(
        others, ("script", "result", "reason"), tablefmt="github", disable_numparse=True
    )
    if not others:
        return f"All {len(rows)} scripts run."
    return f"Of {len(rows)} scripts, {counted}.\n\n{shown}"
