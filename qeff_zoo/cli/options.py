# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share: options of a build, a package, threads, and network use."""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from qeff_zoo.cli.applicable import add_help
from qeff_zoo.errors import ZooError, did_you_mean
from qeff_zoo.package.option import JsonText
from qeff_zoo.plan.request import OPTIONS

#: Number of options beyond which a usage lists none of them.
_MANY = 12
#: Groups of the options of a build that do not apply to every task, by `Option.of`.
_GROUPS = MappingProxyType(
    {
        "decoder": "of models that generate text",
        "encoder": "of encoders",
        "vision": "of models that read images",
        "embeddings": "of models that embed",
    }
)


class CommandParser(argparse.ArgumentParser):
    """Parser of a command. Its errors show a short usage, and the nearest choice to a misspelled value."""

    #: Function that adds arguments from elsewhere to those of the command line.
    expand: Callable[[Sequence[str]], Sequence[str]] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, with those that `expand` adds."""
        if self.expand is not None:
            try:
                args = self.expand(args)
            except ZooError as error:
                self.error(str(error).removesuffix("."))
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Return the help; the usage of a command with many options has only its arguments."""
        arguments = [action for action in self._actions if not action.option_strings]
        if self.usage is None and len(self._actions) > _MANY:
            formatter = self._get_formatter()
            formatter.add_usage(None, arguments, [], "")
            usage = formatter.format_help().strip()
            self.usage = usage.replace(self.prog, f"{self.prog} [options]", 1)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print the required arguments and an error, and exit with 2."""
        formatter = self._get_formatter()
        required = [
            copy(action) for action in self._actions if action.required or not action.option_strings
        ]
        for one in required:
            one.help = (
                None  # a usage has no action whose help is suppressed, such as that of commands
            )
        formatter.add_usage(None, required, [])
        usage = formatter.format_help().replace(self.prog, f"{self.prog} [options]", 1).rstrip()
        stop = "" if message.endswith("?") else "."
        self.exit(
            2,
            f"{usage}\n{self.prog}: error: {message}{stop} See `{self.prog} --help`.\n",
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        near = did_you_mean(str(value), map(str, action.choices))
        expected = "" if near else f"; expected {', '.join(action.choices)}"
        raise argparse.ArgumentError(
            action, f"invalid choice: {value!r}{f'.{near}' if near else expected}"
        )


def command(
    commands: Any, name: str, text: str, group: str = "", *, applicable: bool = False
) -> CommandParser:
    """Add a command, with the options that every command has.

    Args:
        commands: Subparsers that get the command.
        name: Name of the command.
        text: Help of the command.
        group: Name of its command group.
        applicable: Whether `--help` shows only options that apply to the package or model.
    """
    parser: CommandParser = commands.add_parser(
        name, help=text, description=text, add_help=not applicable
    )
    if applicable:
        add_help(parser)
    parser.set_defaults(command=f"{group} {name}".strip(), parser=parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a model and the options of a build."""
    parser.add_argument(
        "model", metavar="MODEL", help="Hub id (org/name) or folder of a checkpoint, or a GGUF file"
    )
    add_axes(parser)


def add_gguf(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a GGUF checkpoint."""
    parser.add_argument(
        "--gguf-file",
        metavar="NAME",
        help="GGUF file of the folder or Hub repository MODEL, or its quantization (Q8_0)",
    )
    parser.add_argument(
        "--config-from",
        metavar="ORIGINAL",
        help="original checkpoint of a GGUF file (Hub id, folder or config.json), for its config and tokenizer",
    )


def add_axes(parser: argparse.ArgumentParser) -> None:
    """Add the options of a build."""
    parser.add_argument("--revision", help="branch, tag or commit of a Hub model")
    titles = {"": parser.add_argument_group("build options", "the recipe sets the defaults")}
    for option in OPTIONS.values():
        of = _GROUPS.get(option.of or "", "")
        if option.targets:
            of = f"of target {' and '.join(option.targets)}"
        if of not in titles:
            titles[of] = parser.add_argument_group(f"build options {of}")
        group = titles[of]
        group.add_argument(option.flag, help=option.help, **_READERS[option.kind])
    parser.add_argument("--activations", help=argparse.SUPPRESS)  # refused with the reason
    parser.add_argument(
        "--enable-qnn",
        nargs="?",
        const=True,
        type=json_text,
        metavar="CONFIG",
        help="QEfficient's option for --target qnn-aic and --qnn-config CONFIG",
    )


def integers(text: str) -> tuple[int, ...]:
    """Parse numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def hosts(text: str) -> tuple[str, ...]:
    """Parse hosts separated by commas, each `HOST` or `HOST:PORT`.

    Raises:
        ArgumentTypeError: A value has another form, such as a URL.
    """
    parts = tuple(part.strip().lower() for part in text.split(","))
    if wrong := [
        host for host in parts if not re.fullmatch(r"(\[[^/@]+\]|[^:/@*]+)(:[0-9]+)?", host)
    ]:
        raise argparse.ArgumentTypeError(
            f"{wrong[0]!r} is no host. Expected HOST or HOST:PORT, without a path. Correct it."
        )
    return parts


def not_empty(text: str) -> str:
    """Return the value of an option that is a text of at least one character.

    Raises:
        ArgumentTypeError: The text is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("a name is empty; expected at least one character")
    return text


def pixels(text: str) -> tuple[float, ...]:
    """Return the value of an option with four numbers of pixels.

    Raises:
        ArgumentTypeError: The text has other values.
    """
    try:
        left, top, width, height = map(float, text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no box; expected four numbers in pixels, X,Y,WIDTH,HEIGHT"
        ) from error
    return left, top, width, height


def point(text: str) -> tuple[float, ...]:
    """Return the value of an option with two numbers of pixels.

    Raises:
        ArgumentTypeError: The text has other values.
    """
    try:
        left, top = map(float, text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no point; expected two numbers in pixels, X,Y"
        ) from error
    return left, top


def json_object(text: str) -> dict[str, Any]:
    """Return the value of an option that is a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object; expected one")
    return value


def any_hosts(text: str) -> tuple[str, ...]:
    """Parse hosts like `hosts`, or `*` for any.

    Raises:
        ArgumentTypeError: A value has another form.
    """
    return ("*",) if text.strip() == "*" else hosts(text)


def origins(text: str) -> tuple[str, ...]:
    """Parse origins of web pages separated by commas, each `SCHEME://HOST` or `SCHEME://HOST:PORT`, or `*` for any.

    Raises:
        ArgumentTypeError: A value has another form, such as a URL with a path.
    """
    parts = tuple(part.strip().lower() for part in text.split(","))
    pattern = r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+|null|\*"
    if wrong := [part for part in parts if not re.fullmatch(pattern, part)]:
        raise argparse.ArgumentTypeError(
            f"{wrong[0]!r} is no origin. Expected SCHEME://HOST or SCHEME://HOST:PORT, without a path. Correct it."
        )
    return parts


def json_text(path: str) -> JsonText:
    """Read a file with a JSON object.

    Raises:
        ArgumentTypeError: The file has none.
    """
    from qeff_zoo.package.identity import canonical
    from qeff_zoo.package.manifest import parse

    try:
        return JsonText(canonical(parse(Path(path).read_bytes())).decode())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"cannot read {path!r}: {error}. Expected a file that holds a JSON object. Correct that, or the path."
        ) from error


#: Argparse settings of a flag, by the type of its option.
_READERS: Mapping[Any, Mapping[str, Any]] = MappingProxyType(
    {
        str: {},
        int: {"type": int, "metavar": "N"},
        float: {"type": float, "metavar": "X"},
        JsonText: {"type": json_text, "metavar": "FILE"},
        tuple[int, ...]: {"type": integers, "metavar": "N,N"},
        tuple[str, ...]: {"action": "append", "metavar": "TEXT"},
        bool: {"action": argparse.BooleanOptionalAction, "default": None},
    }
)


def add_package(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a package."""
    parser.add_argument(
        "package", metavar="PACKAGE", help="folder, model, key or variant of a package"
    )


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the build key of the only acceptable package."""
    parser.add_argument(
        "--key", help="package to select: its build key (8 digits or more), variant, or VARIANT/KEY"
    )


def add_remote(parser: Any) -> None:
    """Add the only remote to search."""
    parser.add_argument(
        "--from",
        dest="remote",
        metavar="REMOTE",
        help="the only remote to search: URL, or org/repo of the Hub",
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: physical cores)"
    )


def add_offline(parser: argparse.ArgumentParser) -> None:
    """Add the option to use no network."""
    parser.add_argument(
        "--offline",
        action="store_true",
        help="no network access: only the store and cached indexes",
    )


def add_private(parser: argparse.ArgumentParser) -> None:
    """Add the option to make a new repository private."""
    parser.add_argument("--private", action="store_true", help="make a new Hub repository private")


def add_sign_with(parser: argparse.ArgumentParser) -> None:
    """Add the key that signs a remote's index."""
    parser.add_argument(
        "--sign-with",
        type=Path,
        metavar="FILE",
        help="PEM file of the private key for signing the remote's index",
    )


def add_draft(parser: argparse.ArgumentParser) -> None:
    """Add what drafts tokens."""
    parser.add_argument(
        "--draft",
        metavar="lookup|heads|PACKAGE",
        help="speculative decoding with prompt lookup, with the package's draft heads (--draft-heads of `build`), or "
        "with the package of a draft model; for packages built with --num-speculative-tokens",
    )
