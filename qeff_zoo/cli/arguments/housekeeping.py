# SPDX-License-Identifier: Apache-2.0
"""What is kept and what is missing: `cache`, `doctor`, `new`."""

import argparse
from pathlib import Path
from typing import Any

from qeff_zoo.cli.arguments.options import command

_FOREVER = 36_500  # days


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days < _FOREVER:
        raise argparse.ArgumentTypeError(f"{text!r} days; expected 0 or more, at most {_FOREVER:,}")
    return days


def _add_cache(commands: Any) -> None:
    parser = commands.add_parser(
        "cache", help="list, clean or check the store", description="The store of packages."
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command(verbs, "ls", "list what the store holds", "cache")
    rm = command(verbs, "rm", "remove packages from the store", "cache")
    rm.add_argument(
        "packages", nargs="+", metavar="PACKAGE", help="folder, model, key or variant of a package"
    )
    gc = command(
        verbs,
        "gc",
        "remove failed and abandoned builds, and with --older-than unused packages",
        "cache",
    )
    gc.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="also packages and graphs that were unused for that many days",
    )
    for parser in (rm, gc):
        parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    command(
        verbs,
        "verify",
        "read every byte of the store and compare it with its digest",
        "cache",
    )


def _add_doctor(commands: Any) -> None:
    command(commands, "doctor", "say what this machine can do, and what is missing")


def _add_new(commands: Any) -> None:
    parser = command(commands, "new", "draft a recipe from its nearest relative, and try it")
    parser.add_argument("model", metavar="MODEL", help="Hub id, folder or config.json")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", default=Path("recipes"), help="default: recipes"
    )


#: The functions that add each command.
COMMANDS = (
    _add_cache,
    _add_doctor,
    _add_new,
)
