# SPDX-License-Identifier: Apache-2.0
"""What shared packages there are of a model, and what is known against one: `resolve` and `yank`."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.printing import print_json, table
from qeff_zoo.cli.reading import choices_of
from qeff_zoo.cli.signing import signer

if TYPE_CHECKING:
    from qeff_zoo.hub.resolve import Resolution
    from qeff_zoo.hub.resolve.choose import Candidate


def resolve_command(arguments: argparse.Namespace) -> int:
    """Print what to do for a model, and what was considered."""
    from qeff_zoo.hub.resolve import resolve

    resolution = resolve(
        arguments.model, choices_of(arguments), revision=arguments.revision, key=arguments.key
    )
    if arguments.json:
        print_json(_facts(resolution))
    else:
        _print(resolution)
    return resolution.exit_code


def _facts(resolution: "Resolution") -> dict[str, Any]:
    return {
        "verdict": resolution.verdict,
        "model": resolution.model,
        "package": _describe(resolution.chosen) if resolution.chosen else None,
        "nearest": resolution.nearest.entry.path if resolution.nearest else None,
        "difference": resolution.difference or None,
        "candidates": [_describe(candidate) for candidate in resolution.candidates],
        "notes": list(resolution.notes),
        "problems": list(resolution.problems),
    }


def _describe(candidate: "Candidate") -> dict[str, Any]:
    entry = candidate.entry
    return {
        "path": entry.path,
        "remote": candidate.remote,
        "here": str(candidate.here) if candidate.here else None,
        "manifest": entry.manifest,
        "revision": entry.revision,
        "size": entry.size,
        "finished": entry.finished,
        "validated": entry.validated,
        "signed": entry.signed,
        "axes": dict(entry.axes),
        "refused": [asdict(refusal) for refusal in candidate.refused],
        "warnings": list(candidate.warnings),
    }


def _print(resolution: "Resolution") -> None:
    from qeff_zoo.package.description import human_size

    chosen = resolution.chosen
    print(f"{resolution.verdict} {chosen.entry.path}" if chosen else resolution.verdict)
    if chosen:
        place = f"in the store, {chosen.here}" if chosen.here else f"at {chosen.remote}"
        print(f"  {resolution.model}, {human_size(chosen.entry.size)}, {place}")
    for warning in resolution.warnings:
        print(f"  {warning}")
    if not chosen and resolution.nearest:
        print(f"  Nearest: {resolution.nearest.entry.path}: {resolution.difference}")
    for text in (*resolution.problems, *resolution.notes):
        print(f"  {text}")
    rows = [
        [
            "refused" if candidate.refused else "fits",
            candidate.entry.path,
            candidate.entry.validated,
            candidate.difference or " ".join(candidate.warnings),
        ]
        for candidate in resolution.candidates
    ]
    if rows:
        print(table(rows, ["", "package", "validated", "why"]))


def yank_command(arguments: argparse.Namespace) -> None:
    """Change what a remote's index says of a package."""
    from qeff_zoo.hub.publish.notice import publish_notice

    state = (
        "superseded"
        if arguments.superseded_by
        else "known_bad"
        if arguments.known_bad
        else "yanked"
    )
    done = publish_notice(
        arguments.remote,
        arguments.package,
        None if arguments.undo else state,
        reason=arguments.reason or "",
        instead=arguments.superseded_by,
        sign=signer(arguments),
    )
    if arguments.json:
        print_json(asdict(done))
    else:
        print(f"{done.path}: {done.state or 'no notice'}", file=sys.stderr)
        print(done.url)
