# SPDX-License-Identifier: Apache-2.0
"""Who vouches for packages, and who is trusted to: `sign` and `trust`."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from qeff_zoo.cli.printing import print_json, table
from qeff_zoo.errors import SettingsError

if TYPE_CHECKING:
    from qeff_zoo.hub.index import Sign
    from qeff_zoo.hub.policy import Pin


def signer(arguments: argparse.Namespace) -> "Sign | None":
    """Return what signs the index of the remote, if that was asked for."""
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
    """Pin a key or an identity, and print what was pinned."""
    from qeff_zoo.hub import policy

    scope = policy.scope_of(arguments.scope)
    by_identity = arguments.identity and arguments.issuer and not arguments.key
    if not by_identity and (not arguments.key or arguments.identity or arguments.issuer):
        raise SettingsError(
            "Cannot tell whom to trust; expected the file of a public key, or --identity and --issuer. Give one."
        )
    if by_identity:
        pin = policy.pin_identity(arguments.identity, arguments.issuer, scope)
    else:
        pin = policy.pin_key(arguments.key, scope)
    _print([pin], arguments)


def trust_ls_command(arguments: argparse.Namespace) -> None:
    """Print who is pinned."""
    from qeff_zoo.hub import policy

    _print(policy.pins(), arguments)
    if not arguments.json:
        print(f"mode: {policy.policy().mode}", file=sys.stderr)


def trust_rm_command(arguments: argparse.Namespace) -> None:
    """Take a pin back, and print what was removed."""
    from qeff_zoo.hub import policy

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
    print(table(rows, ["for", "who", "file or issuer"]) if rows else "Nobody is pinned.")
