# SPDX-License-Identifier: Apache-2.0
"""Commands that upload packages: `publish` and `copy`."""

import argparse
import sys
from dataclasses import asdict
from typing import Any

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.options import add_package, add_private, add_sign_with, command
from qeff_zoo.cli.signing import signer
from qeff_zoo.terminal.printing import print_json, print_warnings, table


def publish_command(arguments: argparse.Namespace) -> None:
    """Publish a package or an adapter, and print the URL of the commit; or print the plan."""
    from qeff_zoo.hub.publish.adapter import is_adapter

    if is_adapter(arguments.package):
        _publish_adapter(arguments)
        return
    from qeff_zoo.api import find_package
    from qeff_zoo.hub.publish import publish
    from qeff_zoo.hub.publish.plan import plan_publication

    bars = reporter(arguments)
    plan = plan_publication(
        find_package(arguments.package),
        arguments.remote,
        private=arguments.private,
        create_pr=arguments.create_pr,
        of_others=arguments.of_others,
        reporter=bars,
    )
    if arguments.dry_run:
        print_json(plan.as_dict()) if arguments.json else print(plan)
        return
    print(plan.summary, file=sys.stderr)
    url = publish(plan, reporter=bars, sign=signer(arguments))
    if arguments.json:
        print_json({**plan.as_dict(), "url": url})
    else:
        print(url)


def _publish_adapter(arguments: argparse.Namespace) -> None:
    from qeff_zoo.errors import PublishError
    from qeff_zoo.hub.publish.adapter import publish_adapter

    if arguments.create_pr or arguments.sign_with:
        raise PublishError(
            f"{arguments.package!r} is an adapter, and --create-pr and --sign-with are for packages. Expected neither. "
            "Leave them out."
        )
    done = publish_adapter(
        arguments.package, arguments.remote, private=arguments.private, dry_run=arguments.dry_run
    )
    if arguments.json:
        print_json({"card" if arguments.dry_run else "url": done})
    else:
        print(done)


def copy_command(arguments: argparse.Namespace) -> None:
    """Copy packages from one remote to another, and print the result of each."""
    from qeff_zoo.hub.publish.mirror import Mirror
    from qeff_zoo.terminal.printing import human_size

    mirror = Mirror(private=arguments.private, sign=signer(arguments), reporter=reporter(arguments))
    copied = []
    for each in mirror.copy(
        arguments.source,
        arguments.remote,
        models=arguments.models,
        key=arguments.key,
        dry_run=arguments.dry_run,
    ):
        copied.append(each)
        print_warnings(each.model, each.warnings)
        done = "to copy" if arguments.dry_run else each.url
        print(f"{each.model}: {each.path}, {human_size(each.size)}: {done}", file=sys.stderr)
    if arguments.json:
        print_json([asdict(each) for each in copied])
    else:
        print(
            table(
                [[each.model, each.path, each.url] for each in copied],
                ["model", "package", "commit"],
            )
        )


# --- arguments ----------------------------------------------------------------------------------


def _add_publish(commands: Any) -> None:
    text = "publish a package, or a folder with a LoRA adapter, to a remote in one commit"
    parser = command(commands, "publish", text)
    add_package(parser)
    parser.add_argument(
        "remote",
        metavar="REMOTE",
        help="Hub repository (org/repo), hf://org/repo[@branch] or file:///path",
    )
    add_private(parser)
    parser.add_argument(
        "--create-pr", action="store_true", help="open a pull request instead of committing"
    )
    parser.add_argument(
        "--of-others",
        action="store_true",
        help="publish a package unchanged that was built elsewhere, even if its signer is not pinned",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    add_sign_with(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


def _add_copy(commands: Any) -> None:
    parser = command(commands, "copy", "copy packages from one remote to another")
    parser.add_argument("source", metavar="REMOTE", help="source: URL, or org/repo of the Hub")
    parser.add_argument("remote", metavar="REMOTE", help="destination: URL, or org/repo of the Hub")
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="only packages of these models (default: all)"
    )
    parser.add_argument("--key", help="only the package of this build key or path")
    add_private(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    add_sign_with(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_publish, {"publish": publish_command}),
    (_add_copy, {"copy": copy_command}),
)
