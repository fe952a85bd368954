# SPDX-License-Identifier: Apache-2.0
"""Commands for shared packages: `ls`, `resolve` and `yank`."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.inputs import choices_of, source_of
from qeff_zoo.cli.options import (
    add_choices,
    add_gguf,
    add_key,
    add_offline,
    add_remote,
    add_sign_with,
    command,
)
from qeff_zoo.cli.signing import signer
from qeff_zoo.terminal.printing import print_json, table

if TYPE_CHECKING:
    from qeff_zoo.hub.resolve import Resolution
    from qeff_zoo.hub.resolve.choose import Candidate


def ls_command(arguments: argparse.Namespace) -> None:
    """Print the packages of a remote."""
    from qeff_zoo.hub.naming import notice_text
    from qeff_zoo.hub.remotes import remote_at
    from qeff_zoo.hub.resolve.claims import snapshot_of
    from qeff_zoo.hub.resolve.lookup import listing
    from qeff_zoo.store import Store

    snapshot = snapshot_of(remote_at(arguments.remote))
    candidates = listing(snapshot, arguments.model, Store())
    for warning in snapshot.index.warnings:
        print(warning, file=sys.stderr)
    if arguments.json:
        print_json([_describe(candidate) for candidate in candidates])
    elif candidates:
        rows = [
            [
                candidate.entry.model,
                *_row(candidate, [notice_text(candidate.notice)] if candidate.notice else []),
            ]
            for candidate in candidates
        ]
        print(table(rows, ["model", *_COLUMNS]))
    else:
        print(f"{arguments.remote} has no packages.", file=sys.stderr)


def resolve_command(arguments: argparse.Namespace) -> int:
    """Print the verdict for a model, and the candidates."""
    from qeff_zoo.hub.resolve import resolve

    resolution = resolve(
        arguments.model,
        choices_of(arguments),
        key=arguments.key,
        remote=arguments.remote,
        adapters=True,
        **source_of(arguments),
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
        "package": _judged(resolution.chosen) if resolution.chosen else None,
        "nearest": resolution.nearest.entry.path if resolution.nearest else None,
        "difference": resolution.difference or None,
        "candidates": [_judged(candidate) for candidate in resolution.candidates],
        "notes": list(resolution.notes),
        "problems": list(resolution.problems),
    }


def _judged(candidate: "Candidate") -> dict[str, Any]:
    return {
        **_describe(candidate),
        "refused": [asdict(refusal) for refusal in candidate.refused],
        "warnings": list(candidate.warnings),
    }


def _describe(candidate: "Candidate") -> dict[str, Any]:
    entry = candidate.entry
    return {
        "model": entry.model,
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
        "notice": asdict(candidate.notice) if candidate.notice else None,
    }


#: Columns that every table of packages has.
_COLUMNS = ["package", "size", "validated", "signed", "status"]


def _row(candidate: "Candidate", known: Iterable[str]) -> Sequence[str]:
    from qeff_zoo.hub.naming import short_name
    from qeff_zoo.terminal.printing import human_size

    entry = candidate.entry
    return [
        short_name(entry.path),
        human_size(entry.size),
        entry.validated,
        "yes" if entry.signed else "no",
        "; ".join([*(["here"] if candidate.here else []), *known]),
    ]


def _print(resolution: "Resolution") -> None:
    from qeff_zoo.hub.naming import short_name
    from qeff_zoo.terminal.printing import human_size

    chosen = resolution.chosen
    print(f"{resolution.verdict} {short_name(chosen.entry.path)}" if chosen else resolution.verdict)
    if chosen:
        location = f"in the store, {chosen.here}" if chosen.here else f"at {chosen.remote}"
        print(f"  {resolution.model}, {human_size(chosen.entry.size)}, {location}")
    for warning in resolution.warnings:
        print(f"  {warning}")
    if not chosen and resolution.nearest:
        print(f"  Nearest: {short_name(resolution.nearest.entry.path)}: {resolution.difference}")
    for text in (*resolution.problems, *resolution.notes):
        print(f"  {text}")
    rows = [
        [
            "refused" if candidate.refused else "fits",
            *_row(candidate, [candidate.difference] if candidate.refused else candidate.warnings),
        ]
        for candidate in resolution.candidates
    ]
    if rows:
        print(table(rows, ["", *_COLUMNS]))


def yank_command(arguments: argparse.Namespace) -> None:
    """Change the status of a package in a remote's index."""
    from qeff_zoo.hub.naming import short_name
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
        print(f"{short_name(done.path)}: {done.state or 'no notice'}", file=sys.stderr)
        print(done.url)


# --- arguments ----------------------------------------------------------------------------------


def _add_ls(commands: Any) -> None:
    parser = command(commands, "ls", "list the packages of a remote")
    parser.add_argument("remote", metavar="REMOTE", help="URL, or org/repo of the Hub")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="only packages of this model")
    add_offline(parser)


def _add_resolve(commands: Any) -> None:
    parser = command(
        commands, "resolve", "show which shared package fits the options, and why others do not"
    )
    add_choices(parser)
    add_gguf(parser)
    add_key(parser)
    add_remote(parser)
    add_offline(parser)


def _add_yank(commands: Any) -> None:
    parser = command(commands, "yank", "publish a notice about a package in a remote's index")
    parser.add_argument(
        "remote",
        metavar="REMOTE",
        help="Hub repository (org/repo), hf://org/repo[@branch] or file:///path",
    )
    parser.add_argument(
        "package",
        metavar="KEY",
        help="build key (8 digits or more), variant, or VARIANT/KEY of the package",
    )
    parser.add_argument("--reason", metavar="TEXT", help="reason for the notice, in one line")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--superseded-by",
        metavar="KEY",
        help="mark the package as superseded: warn, and prefer this package of the remote",
    )
    kind.add_argument(
        "--known-bad",
        action="store_true",
        help="mark the package as known to be bad: reject it, even by its key",
    )
    kind.add_argument("--undo", action="store_true", help="withdraw the notice")
    add_sign_with(parser)


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_ls, {"ls": ls_command}),
    (_add_resolve, {"resolve": resolve_command}),
    (_add_yank, {"yank": yank_command}),
)
