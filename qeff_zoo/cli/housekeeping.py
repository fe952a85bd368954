# SPDX-License-Identifier: Apache-2.0
"""What is kept and what is missing: `cache`, `doctor` and `new`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from qeff_zoo.cli.printing import print_json, table


def cache_ls_command(arguments: argparse.Namespace) -> None:
    """Print what the store holds."""
    from qeff_zoo.store import Store

    store = Store()
    _print_entries(store.entries(), arguments)
    print(f"Store: {store.root}", file=sys.stderr)


def cache_gc_command(arguments: argparse.Namespace) -> None:
    """Remove what nobody needs from the store."""
    from qeff_zoo.store import Store

    older_than = None if arguments.older_than is None else timedelta(days=arguments.older_than)
    _print_entries(Store().gc(older_than=older_than, dry_run=arguments.dry_run), arguments)


def _print_entries(entries: Sequence[Any], arguments: argparse.Namespace) -> None:
    from qeff_zoo.package import Package
    from qeff_zoo.package.description import human_size

    def name(entry: Any) -> str | None:
        return (
            Package.open(entry.path).name
            if (entry.kind, entry.state) == ("package", "complete")
            else None
        )

    if arguments.json:
        facts = [
            {"kind": e.kind, "key": e.key, "name": name(e) if e.path.exists() else None, "path": str(e.path),
             "size": e.size, "state": e.state}
            for e in entries
        ]  # fmt: skip
        print_json(facts)
        return
    rows = [
        [e.kind, e.state, human_size(e.size), (name(e) if e.path.exists() else None) or "", e.key]
        for e in entries
    ]
    print(table(rows, ["kind", "state", "size", "name", "key"]))


def cache_verify_command(arguments: argparse.Namespace) -> int:
    """Digest what the store holds; 1 if something changed."""
    from qeff_zoo.store import Store

    found = Store().verify()
    if arguments.json:
        print_json(found)
    else:
        for key, problems in found.items():
            print(f"{key}: {'; '.join(problems) or 'intact'}")
    return 1 if any(found.values()) else 0


def doctor_command(arguments: argparse.Namespace) -> None:
    """Print what this machine can do."""
    from qeff_zoo.doctor import examine

    findings = examine()
    if arguments.json:
        print_json([asdict(finding) for finding in findings])
    else:
        print(
            table(
                [[f.status, f.name, f.detail, f.advice] for f in findings],
                ["", "what", "found", "advice"],
            )
        )


def new_command(arguments: argparse.Namespace) -> int:
    """Draft a recipe and try it; 1 if it does not match."""
    from qeff_zoo import scaffold

    proposal = scaffold.propose(arguments.model)
    path = scaffold.write(proposal, arguments.output)
    trial = scaffold.try_out(path)
    if arguments.json:
        facts = {"path": str(path), "relative": proposal.relative, "notes": list(proposal.notes)}
        print_json({**facts, "trial": asdict(trial)})
    else:
        print(trial.report, *proposal.notes, sep="\n", file=sys.stderr)
        print(path)
    return 0 if trial.passed else 1
