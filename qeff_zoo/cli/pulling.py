# SPDX-License-Identifier: Apache-2.0
"""Commands that obtain packages: `pull`, `lock`, `repair`, `bundle export` and `bundle import`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.inputs import choices_of, source_of
from qeff_zoo.cli.options import add_axes, add_gguf, add_key, add_offline, add_remote, command
from qeff_zoo.errors import ResolutionError, ZooError
from qeff_zoo.terminal.printing import print_json, print_warnings

if TYPE_CHECKING:
    from qeff_zoo.hub.pull import Pulled, Puller


def pull_command(arguments: argparse.Namespace) -> int:
    """Pull a package, or the packages of a lock, and print the path; exit as `resolve` does."""
    from qeff_zoo.hub.pull import lock
    from qeff_zoo.hub.resolve import EXIT_CODES
    from qeff_zoo.store.copies import copy_out

    puller = _puller(arguments)
    if arguments.locked is None:
        pulled = [_pull(arguments, puller)]
    elif arguments.key is not None:
        raise ResolutionError(
            f"--locked pulls what a file pins, and --key {arguments.key!r} names something else; expected one of the "
            "two. Leave one out."
        )
    else:
        chosen = lock.chosen(lock.read_lock(arguments.locked), arguments.models)
        pulled = [lock.pull_locked(locked, puller) for locked in chosen]
    if arguments.output is not None:
        if len(pulled) != 1:
            raise ResolutionError(
                f"Cannot copy {len(pulled)} packages to {str(arguments.output)!r}; expected one. Name its model, or "
                "leave --output out."
            )
        pulled = [replace(pulled[0], package=copy_out(pulled[0].package, arguments.output))]
    _print(pulled, arguments, single=arguments.locked is None)
    return max((EXIT_CODES[each.verdict] for each in pulled), default=0)


def _puller(arguments: argparse.Namespace) -> "Puller":
    from qeff_zoo.hub.pull import Puller
    from qeff_zoo.store import Store

    def announce(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr)

    return Puller(Store(), reporter(arguments), announce)


def _pull(arguments: argparse.Namespace, puller: "Puller") -> "Pulled":
    from qeff_zoo.hub import resolve
    from qeff_zoo.hub.pull import Pulled, bring

    if len(arguments.models) != 1:
        raise ResolutionError(
            f"Cannot pull {len(arguments.models)} models at once; expected one, or --locked with a file that pins "
            "them. Give one MODEL."
        )
    (model,) = arguments.models
    resolution = resolve.resolve(
        model,
        choices_of(arguments),
        key=arguments.key,
        remote=arguments.remote,
        adapters=True,
        store=puller.store,
        **source_of(arguments),
    )
    if resolution.verdict == resolve.BUILD and arguments.or_build:
        from qeff_zoo import pipeline
        from qeff_zoo.plan.request import Request

        request = Request(**choices_of(arguments))
        built = pipeline.build(model, request, reporter=puller.reporter, **source_of(arguments))
        return Pulled(package=built.package, hit=False, bytes_transferred=0, source=None)
    try:
        resolve.require(resolution)
    except ZooError as error:
        error.exit_code = resolution.exit_code
        raise
    return bring(resolution, puller)


def _print(pulled: "Sequence[Pulled]", arguments: argparse.Namespace, *, single: bool) -> None:
    from qeff_zoo.hub.entries import package_path
    from qeff_zoo.hub.naming import full_name
    from qeff_zoo.terminal.printing import human_size

    if arguments.json:
        facts = [
            {
                "path": str(each.package.path),
                "build_key": each.package.build_key,
                "hit": each.hit,
                "bytes_transferred": each.bytes_transferred,
                "source": each.source,
                "warnings": list(each.warnings),
            }
            for each in pulled
        ]
        print_json(facts[0] if single else facts)
        return
    for each in pulled:
        _print_warnings(each)
        state = (
            "was in the store already"
            if each.hit
            else f"pulled, {human_size(each.bytes_transferred)} transferred"
            if each.source
            else "built"
        )
        name = full_name(each.package.name, package_path(each.package.manifest))
        print(f"{name}: {state}", file=sys.stderr)
        print(each.package.path)


def _print_warnings(pulled: "Pulled") -> None:
    print_warnings(pulled.package.name, pulled.warnings)


def lock_command(arguments: argparse.Namespace) -> None:
    """Pin a package for each model, and print the lock's path."""
    from qeff_zoo.hub.naming import short_name
    from qeff_zoo.hub.pull import lock

    locked = lock.lock(
        arguments.models,
        choices_of(arguments),
        revision=arguments.revision,
        remote=arguments.remote,
    )
    lock.write_lock(arguments.output, locked)
    if arguments.json:
        packages = [
            {"model": each.model, **asdict(each.origin), "warnings": list(each.warnings)}
            for each in locked
        ]
        print_json({"path": str(arguments.output), "packages": packages})
        return
    for each in locked:
        print_warnings(each.model, each.warnings)
        name = short_name(each.origin.path)
        print(f"{each.model}: {name} of {each.origin.url}", file=sys.stderr)
    print(arguments.output)


def repair_command(arguments: argparse.Namespace) -> int:
    """Repair packages of the store; return 1 if one is still damaged."""
    from qeff_zoo.hub.naming import name_at
    from qeff_zoo.hub.pull.repair import repair
    from qeff_zoo.terminal.printing import human_size

    repaired = repair(arguments.packages, reporter=reporter(arguments))
    if arguments.json:
        print_json([{**asdict(each), "path": str(each.path)} for each in repaired])
    else:
        for each in repaired:
            state = (
                f"still damaged: {each.error}"
                if each.error
                else f"repaired, {human_size(each.bytes_transferred)} transferred"
                if each.problems
                else "intact"
            )
            print(f"{name_at(each.path)}: {state}")
    return 1 if any(each.error for each in repaired) else 0


def bundle_export_command(arguments: argparse.Namespace) -> None:
    """Write packages to one file, and print its path."""
    from qeff_zoo.api import find_here
    from qeff_zoo.hub.pull import pull
    from qeff_zoo.hub.pull.bundle import export_bundle

    puller = _puller(arguments)
    packages = []
    for reference in arguments.packages:
        package = find_here(reference)
        if package is None:
            pulled = pull(reference, puller=puller)
            _print_warnings(pulled)
            package = pulled.package
        packages.append(package)
    size = export_bundle(packages, arguments.output, puller.reporter)
    if arguments.json:
        keys = [package.build_key for package in packages]
        print_json({"path": str(arguments.output), "size": size, "build_keys": keys})
    else:
        print(arguments.output)


def bundle_import_command(arguments: argparse.Namespace) -> None:
    """Import the packages of a bundle into the store, and print their paths."""
    from qeff_zoo.hub.pull.bundle import import_bundle

    pulled = import_bundle(arguments.file, reporter=reporter(arguments))
    _print(pulled, arguments, single=False)


# --- arguments ----------------------------------------------------------------------------------


def _add_pull(commands: Any) -> None:
    parser = command(commands, "pull", "download a shared package, and verify every byte")
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="Hub id (org/name), Hub repository of packages (org/repo[@revision]) or URL of a remote",
    )
    add_axes(parser)
    add_gguf(parser)
    add_key(parser)
    where = parser.add_mutually_exclusive_group()
    add_remote(where)
    where.add_argument(
        "--locked",
        nargs="?",
        type=Path,
        const=Path("qeff-zoo.lock"),
        metavar="FILE",
        help="the packages pinned in this lock file, for the given models or all (default: qeff-zoo.lock)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--or-build", action="store_true", help="build the package if none can be pulled"
    )
    add_offline(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


def _add_lock(commands: Any) -> None:
    parser = command(commands, "lock", "select a package for each model, and pin it in a lock file")
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="models as for `pull`; the build options apply to all",
    )
    add_axes(parser)
    add_remote(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("qeff-zoo.lock"),
        help="lock file to write (default: qeff-zoo.lock)",
    )
    add_offline(parser)


def _add_repair(commands: Any) -> None:
    parser = command(commands, "repair", "repair damaged packages of the store")
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE",
        help="folder, model, key or variant (default: every package of the store)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


def _add_bundle(commands: Any) -> None:
    text = "transfer packages to a machine without a network, in one file"
    parser = commands.add_parser("bundle", help=text, description=text)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    export = command(verbs, "export", "write packages to one file", "bundle")
    export.add_argument(
        "packages",
        nargs="+",
        metavar="PACKAGE|MODEL",
        help="folder, model, key or variant of a package, or a model to pull",
    )
    export.add_argument(
        "-o", "--output", type=Path, metavar="FILE.tar", required=True, help="bundle to write"
    )
    imported = command(verbs, "import", "add the packages of a bundle to the store", "bundle")
    imported.add_argument("file", type=Path, metavar="FILE.tar", help="bundle to read")
    for parser in (export, imported):
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_pull, {"pull": pull_command}),
    (_add_lock, {"lock": lock_command}),
    (_add_repair, {"repair": repair_command}),
    (_add_bundle, {"bundle export": bundle_export_command, "bundle import": bundle_import_command}),
)
