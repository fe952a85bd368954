# SPDX-License-Identifier: Apache-2.0
"""How answers look."""

import json
from typing import Any


def print_json(answer: Any) -> None:
    """Print a JSON value."""
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def table(rows: list[list[Any]], headers: list[str]) -> str:
    """Lay rows out under their headers."""
    from tabulate import tabulate

    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
