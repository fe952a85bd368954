# SPDX-License-Identifier: Apache-2.0
"""Commands for signatures and trusted signers: `sign` and `trust`."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.options import add_package, command
from qeff_zoo.errors import SettingsError
from qeff_zoo.terminal.printing import print_json, table

if TYPE_CHECKING:
    from qeff_zoo.hub.index import Sign
    from qeff_zoo.hub.trust.policy import Pin


def signer(arguments: argparse.Namespace) -> "Sign | None":
    """Return the signer of the remote's index; None if no key is given."""
    if arguments.sign_with is None:
        return None
    from qeff_zoo.hub.trust import index_signer

    return index_signer(arguments.sign_with)


def sign_command(arguments: argparse.Namespace) -> None:
    """Sign a package and print the path of the signature."""
    from qeff_zoo.api import find_package
    from qeff_zoo.hub import trust

    path = trust.sign(find_package(arguments.package), key=arguments.key)
    print_json({"signature": str(path)}) if arguments.json else print(path)


def trust_add_command(arguments: argparse.Namespace) -> None:
    """Pin a key or an identity, and print it."""
    from qeff_zoo.hub.trust import policy

    scope = policy.scope_of(arguments.scope)
    by_identity = arguments.identity and arguments.issuer and not arguments.key
    if not by_identity and (not arguments.key or arguments.identity or arguments.issuer):
        raise SettingsError(
            "No signer is named; expected the file of a public key, or --identity and --issuer. Give one."
        )
    if by_identity:
        pin = policy.pin_identity(arguments.identity, arguments.issuer, scope)
    else:
        pin = policy.pin_key(arguments.key, scope)
    _print([pin], arguments)


def trust_ls_command(arguments: argparse.Namespace) -> None:
    """Print the pinned keys and identities."""
    from qeff_zoo.hub.trust import policy

    _print(policy.pins(), arguments)
    if not arguments.json:
        print(f"mode: {policy.policy().mode}", file=sys.stderr)


def trust_rm_command(arguments: argparse.Namespace) -> None:
    """Remove a pin, and print it."""
    from qeff_zoo.hub.trust import policy

    _print(policy.unpin(arguments.who, policy.scope_of(arguments.scope)), arguments)


def _print(pins: "Sequence[Pin]", arguments: argparse.Namespace) -> None:
    from qeff_zoo.settings import TRUST_ENV

    if os.environ.get(TRUST_ENV, "").strip().startswith("{"):
        print(f"{TRUST_ENV} is set, and counts in place of the settings file.", file=sys.stderr)
    if arguments.json:
        print_json([asdict(pin) for pin in pins])
        return
    rows = [
        [pin.scope or "everybody", pin.key[:16] or pin.identity, pin.file or pin.issuer]
        for pin in pins
    ]
    print(table(rows, ["for", "who", "file or issuer"]) if rows else "No signer is pinned.")


# --- arguments ----------------------------------------------------------------------------------


def _add_sign(commands: Any) -> None:
    parser = command(commands, "sign", "sign the manifest of a package")
    add_package(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="PEM file of an elliptic-curve private key (password in the variable QEFF_ZOO_KEY_PASSWORD)",
    )
    how.add_argument(
        "--keyless",
        action="store_true",
        help="sign with Sigstore, with the identity of this workflow or person",
    )


def _add_trust(commands: Any) -> None:
    text = "manage trusted signers, of all remotes or of one"
    parser = commands.add_parser("trust", help=text, description=text)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add = command(verbs, "add", "pin a public key or an identity in the settings", "trust")
    add.add_argument("key", nargs="?", type=Path, metavar="FILE", help="PEM file of a public key")
    add.add_argument("--identity", metavar="WHO", help="e-mail address, or URI of a workflow")
    add.add_argument("--issuer", metavar="URL", help="issuer of the identity")
    command(verbs, "ls", "list pinned signers, with their remotes", "trust")
    remove = command(verbs, "rm", "remove a pin", "trust")
    remove.add_argument(
        "who", metavar="WHO", help="fingerprint, file or identity, as listed by `trust ls`"
    )
    for each in (add, remove):
        each.add_argument(
            "--for",
            dest="scope",
            metavar="REMOTE|ORG",
            help="only for this remote, Hub repository (org/repo) or organization (org)",
        )


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_sign, {"sign": sign_command}),
    (
        _add_trust,
        {
            "trust add": trust_add_command,
            "trust ls": trust_ls_command,
            "trust rm": trust_rm_command,
        },
    ),
)
