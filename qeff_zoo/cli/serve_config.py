# SPDX-License-Identifier: Apache-2.0
"""Configuration file of `serve`: a TOML file with names of flags in, arguments of the command line out."""

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qeff_zoo.disk.text_files import read_text
from qeff_zoo.errors import ServingError, did_you_mean

FLAG = "--config"
#: Key of the packages, which have no flag.
_PACKAGES = "package"


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option of a configuration file."""
    parser.add_argument(
        FLAG,
        metavar="FILE",
        help="TOML file whose keys are names of these flags, without dashes at the front; flags precede it",
    )


def with_config(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the arguments of `serve` with those of its configuration file, which flags follow and thus replace.

    Args:
        argv: Arguments of the command.
        parser: Parser of the command.

    Raises:
        ServingError: The file cannot be read, or has an unknown key or a value of the wrong kind.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(FLAG)
    path = finder.parse_known_args([*argv])[0].config
    if path is None:
        return [*argv]
    try:
        content = tomllib.loads(read_text(Path(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ServingError(
            f"Cannot read the configuration file {path!r}: {error}. Expected TOML, such as `port = 8000`. Correct it."
        ) from error
    packages = content.pop(_PACKAGES, [])
    flags = {
        option.removeprefix("--"): action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and action.dest not in ("config", "help", "help_all")
    }
    words = [word for key, value in content.items() for word in _words(path, key, value, flags)]
    named = _listed(path, _PACKAGES, packages)
    # `--config` after them ends the list of a flag with several values.
    return [*words, f"{FLAG}={path}", *argv, *(["--", *named] if named else [])]


def _words(path: str, key: str, value: Any, flags: dict[str, argparse.Action]) -> Iterator[str]:
    """Yield the arguments of a key."""
    action = flags.get(key)
    if action is None:
        near = did_you_mean(key, [*flags, _PACKAGES])
        raise ServingError(
            f"The configuration file {path!r} has the key {key!r}; expected the name of a flag of `qeff-zoo serve`, "
            f"without dashes at the front.{near} Correct it; `qeff-zoo serve --help-all` lists the flags."
        )
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise _wrong(path, key, value, "true or false")
        if value:
            yield f"--{key}"
        elif isinstance(action, argparse.BooleanOptionalAction):
            yield f"--no-{key}"
    elif action.nargs == "+":
        yield from (f"--{key}", *_listed(path, key, value))
    elif isinstance(action, argparse._AppendAction):
        yield from (f"--{key}={one}" for one in _listed(path, key, value))
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield f"--{key}={value}"
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield f"--{key}={','.join(value)}"  # hosts and origins
    else:
        raise _wrong(path, key, value, "a text, a number or a list of texts")


def _listed(path: str, key: str, value: Any) -> list[str]:
    several = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in several):
        raise _wrong(path, key, value, "a text or a list of texts")
    return several


def _wrong(path: str, key: str, value: Any, expected: str) -> ServingError:
    return ServingError(
        f"The configuration file {path!r} sets {key!r} to {value!r}; expected {expected}. Correct it."
    )
