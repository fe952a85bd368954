# SPDX-License-Identifier: Apache-2.0
"""argv -> what was asked: commands and their options, named as the Python parameters are.

Out: a namespace with `command`, such as "build" or "cache ls", and one attribute for each option.
"""

import argparse
from importlib.metadata import version

from . import building, housekeeping, running, sharing, training

_EPILOG = "Run `qeff-zoo COMMAND --help` for the options of a command."


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="qeff-zoo",
        description="Build, validate and run compiled packages of Hugging Face models.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"qeff-zoo {version('qeff-zoo')}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for part in (building, training, running, sharing, housekeeping):
        for add in part.COMMANDS:
            add(commands)
    return parser
