# SPDX-License-Identifier: Apache-2.0
"""Between machines: `ls`, `resolve`, `pull`, `lock`, `repair`, `bundle`, `yank`, `publish`, `copy`, `trust`, `sign`."""

from pathlib import Path
from typing import Any

from qeff_zoo.cli.arguments.options import (
    add_axes,
    add_choices,
    add_gguf,
    add_key,
    add_offline,
    add_package,
    add_private,
    add_remote,
    add_sign_with,
    command,
)


def _add_ls(commands: Any) -> None:
    parser = command(commands, "ls", "list what a remote has")
    parser.add_argument("remote", metavar="REMOTE", help="URL, or org/repo of the Hub")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="only packages of this model")
    add_offline(parser)


def _add_resolve(commands: Any) -> None:
    parser = command(
        commands, "resolve", "say whether a shared package will do, which one, and why no other"
    )
    add_choices(parser)
    add_gguf(parser)
    add_key(parser)
    add_remote(parser)
    add_offline(parser)


def _add_pull(commands: Any) -> None:
    parser = command(commands, "pull", "bring a shared package here, every byte checked")
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
        help="exactly what this file pins, for the models named or for all (default: qeff-zoo.lock)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--or-build", action="store_true", help="build it where there is none to pull"
    )
    add_offline(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_lock(commands: Any) -> None:
    parser = command(commands, "lock", "choose a package for each model, and pin it in a file")
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="as for `pull`; the choices hold for all"
    )
    add_axes(parser)
    add_remote(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("qeff-zoo.lock"),
        help="the file to write (default: qeff-zoo.lock)",
    )
    add_offline(parser)


def _add_repair(commands: Any) -> None:
    parser = command(commands, "repair", "make damaged packages of the store whole again")
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE",
        help="folder, model, key or variant (default: every package of the store)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_bundle(commands: Any) -> None:
    text = "move packages to a machine without a network, in one file"
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
        "-o", "--output", type=Path, metavar="FILE.tar", required=True, help="the file to write"
    )
    imported = command(
        verbs, "import", "bring the packages of such a file into the store", "bundle"
    )
    imported.add_argument("file", type=Path, metavar="FILE.tar")
    for parser in (export, imported):
        parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_yank(commands: Any) -> None:
    parser = command(commands, "yank", "publish a notice about a package in a remote's index")
    parser.add_argument(
        "remote",
        metavar="REMOTE",
        help="Hub repository (org/repo), hf://org/repo[@branch] or file:///path",
    )
    parser.add_argument(
        "package", metavar="KEY", help="its key (8 digits or more), variant, or VARIANT/KEY"
    )
    parser.add_argument("--reason", metavar="TEXT", help="for people, one line")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--superseded-by", metavar="KEY", help="warn, and prefer this package of the remote"
    )
    kind.add_argument(
        "--known-bad",
        action="store_true",
        help="refuse it to everybody, even to those who ask for its key",
    )
    kind.add_argument("--undo", action="store_true", help="take the notice back")
    add_sign_with(parser)


def _add_publish(commands: Any) -> None:
    text = "put a package, or the folder of an adapter, where others can find it, in one commit"
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
        help="publish as it is what was not built on this machine, and whose signer is not pinned",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    add_sign_with(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_sign(commands: Any) -> None:
    parser = command(commands, "sign", "vouch for a package with a signature over its manifest")
    add_package(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="PEM file of an elliptic curve's private key (its password: QEFF_ZOO_KEY_PASSWORD)",
    )
    how.add_argument(
        "--keyless",
        action="store_true",
        help="by Sigstore, as the workflow or the person that runs this",
    )


def _add_trust(commands: Any) -> None:
    text = "say whose packages are used: everybody's, or a remote's"
    parser = commands.add_parser("trust", help=text, description=text)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add = command(verbs, "add", "pin a public key or an identity in the settings", "trust")
    add.add_argument("key", nargs="?", type=Path, metavar="FILE", help="PEM file of a public key")
    add.add_argument("--identity", metavar="WHO", help="an e-mail address or a workflow's URI")
    add.add_argument("--issuer", metavar="URL", help="who vouches for the identity")
    command(verbs, "ls", "list who is pinned, and for which remote", "trust")
    remove = command(verbs, "rm", "take a pin back", "trust")
    remove.add_argument(
        "who", metavar="WHO", help="fingerprint, file or identity, as `trust ls` has it"
    )
    for each in (add, remove):
        each.add_argument(
            "--for",
            dest="scope",
            metavar="REMOTE|ORG",
            help="only for this remote, Hub repository (org/repo) or organization (org)",
        )


def _add_copy(commands: Any) -> None:
    parser = command(commands, "copy", "mirror packages of one remote to another")
    parser.add_argument("source", metavar="REMOTE", help="where they are")
    parser.add_argument("remote", metavar="REMOTE", help="where they go")
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="only packages of these models (default: all)"
    )
    parser.add_argument("--key", help="only the package of this build key or path")
    add_private(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    add_sign_with(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_serve_args(commands: Any) -> None:
    parser = command(
        commands,
        "serve-args",
        "print what vllm-qaic needs to serve a package of target qaic or qnn-aic",
    )
    add_package(parser)
    parser.add_argument(
        "decode_package",
        nargs="?",
        metavar="DECODE_PACKAGE",
        help="the package of --decode-only, beside one of --prefill-only",
    )


#: The functions that add each command.
COMMANDS = (
    _add_ls,
    _add_resolve,
    _add_pull,
    _add_lock,
    _add_repair,
    _add_bundle,
    _add_yank,
    _add_publish,
    _add_sign,
    _add_trust,
    _add_copy,
    _add_serve_args,
)
