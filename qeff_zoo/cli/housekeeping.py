# SPDX-License-Identifier: Apache-2.0
"""Commands for the store, the machine and new recipes: `cache`, `doctor` and `new`."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.options import command
from qeff_zoo.terminal.printing import print_json, table

if TYPE_CHECKING:
    from qeff_zoo.store.housekeeping import Entry

_FOREVER = 36_500  # days
_MOST_TRIALS = 3  # families of encoders that `new` compares with Hugging Face
_COLUMN = 90  # characters of a line in the table of `doctor`


def cache_ls_command(arguments: argparse.Namespace) -> None:
    """Print the contents of the store."""
    from qeff_zoo.store import Store

    store = Store()
    _print_entries(store.entries(), arguments)
    print(f"Store: {store.root}", file=sys.stderr)


def cache_rm_command(arguments: argparse.Namespace) -> None:
    """Remove packages from the store, and print the number of freed bytes."""
    from qeff_zoo.store import Store
    from qeff_zoo.terminal.printing import human_size

    store = Store()
    chosen = _chosen(store.entries(), arguments.packages)
    rows = _facts(chosen) if arguments.json else _table(chosen)  # before their removal
    size = store.remove(chosen, dry_run=arguments.dry_run)
    if arguments.json:
        print_json({"bytes_freed": size, "packages": rows})
    else:
        print(rows)
        print(
            f"{human_size(size)} {'to be freed' if arguments.dry_run else 'freed'}", file=sys.stderr
        )


def _chosen(entries: "Sequence[Entry]", references: Sequence[str]) -> "list[Entry]":
    """Return the packages that the references name, including damaged ones."""
    from qeff_zoo.errors import PackageError
    from qeff_zoo.hub.naming import ambiguity, is_at, name_at

    chosen = {}
    for reference in references:
        named = [each for each in entries if each.kind == "package" and is_at(reference, each.path)]
        if not named:
            raise PackageError(
                f"No package {reference!r} in the store. Expected a folder, model, key or variant that `qeff-zoo cache "
                "ls` lists. Check it."
            )
        if len(named) > 1:
            raise PackageError(ambiguity(reference, (name_at(each.path) for each in named)))
        chosen[named[0].path] = named[0]
    return list(chosen.values())


def cache_gc_command(arguments: argparse.Namespace) -> None:
    """Remove unreferenced files from the store."""
    from qeff_zoo.store import Store

    older_than = None if arguments.older_than is None else timedelta(days=arguments.older_than)
    _print_entries(Store().gc(older_than=older_than, dry_run=arguments.dry_run), arguments)


def _print_entries(entries: "Sequence[Entry]", arguments: argparse.Namespace) -> None:
    print_json(_facts(entries)) if arguments.json else print(_table(entries))


def _facts(entries: "Sequence[Entry]") -> list[dict[str, Any]]:
    from qeff_zoo.hub.naming import names_at

    return [
        {"kind": e.kind, "key": e.key, "name": names_at(e.path)[0] or None, "path": str(e.path), "size": e.size,
         "state": e.state}
        for e in entries
    ]  # fmt: skip


def _table(entries: "Sequence[Entry]") -> str:
    from qeff_zoo.hub.naming import names_at
    from qeff_zoo.terminal.printing import human_size

    rows = [[e.kind, e.state, human_size(e.size), *names_at(e.path)] for e in entries]
    return table(rows, ["kind", "state", "size", "name", "package"])


def cache_verify_command(arguments: argparse.Namespace) -> int:
    """Digest the contents of the store; return 1 if a file has changed."""
    from qeff_zoo.hub.naming import name_at
    from qeff_zoo.store import Store

    store = Store()
    damages = store.verify()
    if arguments.json:
        print_json(damages)
    else:
        for key, problems in damages.items():
            print(f"{name_at(store.folder(key))}: {'; '.join(problems) or 'intact'}")
    return 1 if any(damages.values()) else 0


def doctor_command(arguments: argparse.Namespace) -> None:
    """Print the capabilities of this machine."""
    from qeff_zoo.cli.doctor import examine

    findings = examine()
    if arguments.json:
        print_json([asdict(finding) for finding in findings])
    else:
        cells = [
            "\n".join(
                textwrap.fill(text, _COLUMN) for text in (finding.detail, finding.advice) if text
            )
            for finding in findings
        ]
        rows = [
            [finding.status, finding.name, cell]
            for finding, cell in zip(findings, cells, strict=True)
        ]
        print(table(rows, ["", "what", "found, and advice"]))


def new_command(arguments: argparse.Namespace) -> int:
    """Draft a recipe and validate it; return 1 if it does not match.

    If the family of an encoder was chosen wrongly, the next family is tried, up to `_MOST_TRIALS`.
    """
    from qeff_zoo import scaffold

    first: tuple[scaffold.Proposal, scaffold.Trial] | None = None
    for proposal in islice(scaffold.proposals(arguments.model), _MOST_TRIALS):
        path = scaffold.write(proposal, arguments.output)
        trial = scaffold.try_out(path)
        first = first or (proposal, trial)
        if trial.passed:
            break
        path.unlink()
    else:
        assert first is not None
        proposal, trial = first
        path = scaffold.write(proposal, arguments.output)
    if arguments.json:
        facts = {"path": str(path), "relative": proposal.relative, "notes": list(proposal.notes)}
        print_json({**facts, "trial": asdict(trial)})
    else:
        print(trial.report, *proposal.notes, sep="\n", file=sys.stderr)
        print(path)
    return 0 if trial.passed else 1


# --- arguments ----------------------------------------------------------------------------------


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
    command(verbs, "ls", "list the packages of the store", "cache")
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
        help="also remove packages and graphs unused for this number of days",
    )
    for parser in (rm, gc):
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be removed"
        )
    command(
        verbs,
        "verify",
        "compare every byte of the store with its digest",
        "cache",
    )


def _add_doctor(commands: Any) -> None:
    command(commands, "doctor", "report the capabilities of this machine, and missing requirements")


def _add_new(commands: Any) -> None:
    parser = command(commands, "new", "draft a recipe from the most similar ones, and test it")
    parser.add_argument("model", metavar="MODEL", help="Hub id, folder or config.json")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        default=Path("recipes"),
        help="folder for the recipe (default: recipes)",
    )


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (
        _add_cache,
        {
            "cache ls": cache_ls_command,
            "cache rm": cache_rm_command,
            "cache gc": cache_gc_command,
            "cache verify": cache_verify_command,
        },
    ),
    (_add_doctor, {"doctor": doctor_command}),
    (_add_new, {"new": new_command}),
)
