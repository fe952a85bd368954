# SPDX-License-Identifier: Apache-2.0
"""Table of the cost of requests by their size, from the record of `tests/hostile/test_server_budget.py`."""

import json
from pathlib import Path

from documentation.tables import table

_RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "budget.json"


def budget() -> str:
    """Return the table of the largest costs of each path."""
    record = json.loads(_RECORD.read_bytes())
    rows = []
    for path, row in record.items():
        (seconds, field), (nbytes, other) = row["cpu_us"], row["bytes"]
        fields = (f"`{name}`" if name else "" for name in (field, other))
        of_time, of_memory = fields
        rows.append(
            [
                f"`{path}`",
                f"{row['cases']:,}",
                f"{seconds:.1f}",
                of_time,
                f"{nbytes:,.0f}",
                of_memory,
            ]
        )
    head = [
        "path",
        "cases",
        "CPU µs a byte",
        "of the field and its growth",
        "bytes of memory a byte",
        "of",
    ]
    return table(head, rows)
