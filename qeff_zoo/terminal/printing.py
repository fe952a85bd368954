# SPDX-License-Identifier: Apache-2.0
"""How answers look."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from qeff_zoo.terminal.sanitize import as_is, shown


def print_json(answer: Any) -> None:
    """Print a JSON value."""
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def print_warnings(name: str, warnings: Iterable[str]) -> None:
    """Print what is known against a package, each line once.

    Args:
        name: The package's, or its model's.
        warnings: A sentence each.
    """
    for warning in dict.fromkeys(warnings):
        print(f"{name}: {warning}", file=sys.stderr)


def print_progress(line: str) -> None:
    """Print a line about the progress of a command to stderr."""
    print(line, file=as_is(sys.stderr), flush=True)


def table(rows: list[list[Any]], headers: list[str]) -> str:
    """Lay rows out under their headers."""
    from tabulate import tabulate

    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)


def print_generated(text: str, end: str = "\n") -> None:
    """Print what a model wrote: to a file or a pipe as it is, to a terminal as all else is shown."""
    stream = sys.stdout if sys.stdout.isatty() else as_is(sys.stdout)
    print(text, end=end, flush=True, file=stream)


def print_dimmed(text: str) -> None:
    """Print a model's reasoning without a line break, dimmed, to a terminal; nothing to a file or a pipe.

    `NO_COLOR` turns dimming off.
    """
    if text and sys.stdout.isatty():
        dims = "" if os.environ.get("NO_COLOR") else "\x1b[2m"
        print(
            dims + shown(text) + "\x1b[0m" * bool(dims), end="", flush=True, file=as_is(sys.stdout)
        )


def human_size(size: int) -> str:
    """Write a number of bytes with three digits and a unit: 4.82 GB."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while size / 1000**power >= 999.5 and power + 1 < len(units):
        power += 1
    return f"{size / 1000**power:.3g} {units[power]}"
