# SPDX-License-Identifier: Apache-2.0
"""Tables of the checks: on the terminal, and in docs/server.md from the record."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from interop_checks.reasons import FAILS, FOREIGN, MISSING, PASS

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "interop.json"
_ORDER = (PASS, MISSING, FOREIGN, FAILS)


def shown(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return counts, and each failure, as text.

    Args:
        name: Name of the check.
        rows: Rows of the check.
    """
    counts = Counter(row["result"] for row in rows)
    head = f"{name}: {', '.join(f'{counts[one]} {one}' for one in _ORDER if counts[one])}"
    failures = [[*row.values()] for row in rows if row["result"] == FAILS]
    return f"{head}\n{tabulate(failures)}" if failures else head


def summary(name: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is recorded of a check: flows of clients, forms and schemas; of a suite, counts by result and reason.

    Args:
        name: Name of the check.
        rows: Rows of the check.
    """
    if name == "clients":
        kept = ("client", "flow", "result", "reason", "date")
        return [{key: row[key] for key in kept} for row in rows]
    if name == "forms":
        kept = ("path", "form", "result", "reason", "server")
        return [{key: row[key] for key in kept} for row in rows]
    if name == "schemas":
        refused = [row["form"] for row in rows if row["reason"]]
        return [
            {"server": rows[0]["server"], "answered": len(rows) - len(refused), "refused": refused}
        ]
    counts = Counter((row["result"], row["reason"]) for row in rows)
    ordered = sorted(counts.items(), key=lambda one: (_ORDER.index(one[0][0]), -one[1], one[0][1]))
    return [
        {"result": result, "reason": reason, "tests": count} for (result, reason), count in ordered
    ]


def merged(
    known: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the recorded flows with those of a later run, which replace the flows of the same name.

    Args:
        known: Recorded flows.
        found: Flows of the later run, some of all.
    """

    def flow(row: Mapping[str, Any]) -> tuple[str, str]:
        return re.sub(r" \d\S*$", "", row["client"]), row["flow"]

    again = {flow(row) for row in found}
    rows = [dict(row) for row in known if flow(row) not in again]
    return sorted([*rows, *map(dict, found)], key=lambda row: str(row["client"]))


def table(path: Path = RECORD) -> str:
    """Return the recorded checks in Markdown.

    Args:
        path: JSON file of the record.
    """
    record = json.loads(path.read_bytes())
    flows = Counter(row["client"] for row in record["clients"])
    passed = Counter(row["client"] for row in record["clients"] if row["result"] == PASS)
    clients = ", ".join(f"{flow} ({passed[flow]} of {flows[flow]})" for flow in sorted(flows))
    ran = [row["date"] for row in record["clients"]]
    dates = " to ".join(sorted({min(ran), max(ran)}))
    total = f"{passed.total()} of {flows.total()} flows of clients pass ({dates}): {clients}."
    suites = {
        name: rows for name, rows in record.items() if name not in ("clients", "forms", "schemas")
    }
    counts = [
        [name, *(sum(row["tests"] for row in rows if row["result"] == one) for one in _ORDER)]
        for name, rows in suites.items()
    ]
    reasons = [
        [name, row["result"], row["tests"], row["reason"]]
        for name, rows in suites.items()
        for row in rows
        if row["reason"]
    ]
    tables = (
        tabulate(counts, ("tests of", *_ORDER), tablefmt="github"),
        tabulate(reasons, ("tests of", "result", "tests", "reason"), tablefmt="github"),
    )
    return "\n\n".join((total, *tables))
