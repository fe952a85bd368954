# SPDX-License-Identifier: Apache-2.0
"""Tables of the recorded checks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "interop.json"


def shown(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return counts, and each row that did not pass, as text.

    Args:
        name: Name of the check.
        rows: Its rows.
    """
    counts = Counter(row["result"] for row in rows)
    head = f"{name}: " + ", ".join(f"{count} {result}" for result, count in counts.most_common())
    others = [[*row.values()] for row in rows if row["result"] not in ("pass", "not applicable")]
    return f"{head}\n{tabulate(others)}" if others else head
