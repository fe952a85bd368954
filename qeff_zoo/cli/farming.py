# SPDX-License-Identifier: Apache-2.0
"""Commands that build many packages: `farm plan`, `farm run` and `farm status`."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.inputs import saying_warnings
from qeff_zoo.cli.options import add_sign_with, command
from qeff_zoo.terminal.printing import human_size, print_json, table

if TYPE_CHECKING:
    from qeff_zoo.farm.planning import FarmPlan

_KEY = 12  # characters of a build key


def _plan(arguments: argparse.Namespace) -> "FarmPlan":
    from qeff_zoo.farm.planning import plan_farm
    from qeff_zoo.farm.zoo_file import read

    with saying_warnings():
        return plan_farm(read(arguments.zoo))


def plan_command(arguments: argparse.Namespace) -> int:
    """Print every package of a zoo, with its state and its needs; return 1 if there are conflicts."""
    plan = _plan(arguments)
    if arguments.json:
        print_json(plan.as_dict())
        return int(bool(plan.conflicts))
    rows = []
    for cell in plan.cells:
        described = cell.as_dict()
        needs = described["estimate"] if described["steps"] else None
        sizes = [human_size(needs["memory"]), human_size(needs["disk"])] if needs else ["", ""]
        seconds = f"{needs['seconds']:,.0f}" if needs else ""
        rows.append([str(cell.wanted), cell.build_key[:_KEY], cell.state, *sizes, seconds])
    print(table(rows, ["package", "build key", "state", "memory", "disk", "seconds"]))
    _print_reasons((str(cell.wanted), cell.state, cell.why) for cell in plan.cells)
    for conflict in plan.conflicts:
        print(f"conflict: {conflict}", file=sys.stderr)
    _print_totals(cell.state for cell in plan.cells)
    return int(bool(plan.conflicts))


def status_command(arguments: argparse.Namespace) -> None:
    """Print what exists of a zoo, and why packages are red or stale."""
    plan = _plan(arguments)
    if arguments.json:
        print_json(plan.as_dict())
        return
    rows = [[str(cell.wanted), cell.package_key[:_KEY], cell.state] for cell in plan.cells]
    print(table(rows, ["package", "build key", "state"]))
    _print_reasons((str(cell.wanted), cell.state, cell.why) for cell in plan.cells)
    _print_totals(cell.state for cell in plan.cells)


def run_command(arguments: argparse.Namespace) -> int:
    """Build what a zoo lacks, and print the report; return 1 if a package is red."""
    from qeff_zoo.farm.reach import keep_local

    if arguments.address is None:
        keep_local()
    from qeff_zoo.farm.running import run
    from qeff_zoo.terminal.progress_bars import board

    plan = _plan(arguments)
    report = run(
        plan,
        address=arguments.address,
        stale=arguments.stale,
        sign_with=arguments.sign_with,
        board=board(sum(bool(cell.steps) for cell in plan.cells), quiet=arguments.quiet),
    )
    if arguments.json:
        print_json(report.as_dict())
        return int(bool(report.red))
    rows = [
        [str(cell.cell.wanted), cell.cell.package_key[:_KEY], cell.state,
         f"{sum(result.seconds for result in cell.results.values()):.1f}"]
        for cell in report.cells
    ]  # fmt: skip
    print(table(rows, ["package", "build key", "state", "seconds"]))
    _print_reasons((str(cell.cell.wanted), cell.state, cell.reason) for cell in report.cells)
    _print_totals(cell.state for cell in report.cells)
    return int(bool(report.red))


def _print_reasons(cells: Iterable[tuple[str, str, str]]) -> None:
    for name, state, why in cells:
        if why:
            print(f"{state}: {name}: {why}")


def _print_totals(states: Iterable[str]) -> None:
    print(", ".join(f"{count} {state}" for state, count in Counter(states).items()))


# --- arguments ----------------------------------------------------------------------------------


def _add_farm(commands: Any) -> None:
    text = "build the packages of a zoo file, on one or many machines"
    parser = commands.add_parser("farm", help=text, description=text)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _zoo(
        command(
            verbs, "plan", "show what would be built, and what it needs, without building", "farm"
        )
    )
    run = command(verbs, "run", "build, validate and publish what a zoo lacks", "farm")
    _zoo(run)
    run.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster that runs the builds (default: this machine)",
    )
    run.add_argument(
        "--stale",
        action="store_true",
        help="validate packages with stale evidence again instead of building new ones",
    )
    add_sign_with(run)
    run.add_argument("-q", "--quiet", action="store_true", help="no progress bars")
    _zoo(
        command(verbs, "status", "show what exists of a zoo, what is red or stale, and why", "farm")
    )


def _zoo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("zoo", type=Path, metavar="ZOO", help="zoo file (TOML)")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (
        _add_farm,
        {"farm plan": plan_command, "farm run": run_command, "farm status": status_command},
    ),
)
