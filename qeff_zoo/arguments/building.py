# SPDX-License-Identifier: Apache-2.0
"""From recipes and models to packages: `list`, `show`, `plan`, `build`, `adopt`, `export`."""

from pathlib import Path
from typing import Any

from qeff_zoo.arguments.options import add_choices, add_private, add_sign_with, command


def _add_list(commands: Any) -> None:
    parser = command(commands, "list", "list the architectures that have a recipe")
    parser.add_argument(
        "--models", action="store_true", help="list checkpoints instead, and what was run with each"
    )


def _add_show(commands: Any) -> None:
    parser = command(commands, "show", "show what a recipe says")
    parser.add_argument("model_type")


def _add_plan(commands: Any) -> None:
    parser = command(
        commands, "plan", "show every choice of a build, and who made it, without building"
    )
    add_choices(parser)


def _add_build(commands: Any) -> None:
    parser = command(commands, "build", "turn a checkpoint into a validated package")
    add_choices(parser)
    parser.add_argument(
        "--no-validate", action="store_true", help="do not compare with Hugging Face"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--prepare-only",
        action="store_true",
        help="make no package, but a folder (--output) to be compiled where the target's compiler is",
    )
    parser.add_argument(
        "--publish", metavar="REMOTE", help="also publish it to this Hub repository or remote"
    )
    add_private(parser)
    add_sign_with(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_adopt(commands: Any) -> None:
    parser = command(
        commands, "adopt", "make a package of a prepared folder and the program compiled from it"
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="by `build --prepare-only`")
    parser.add_argument(
        "program", type=Path, metavar="PROGRAM", help="folder that its compile.sh made: FOLDER/qpc"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="also take a program that does not say what it was compiled from",
    )


def _add_export(commands: Any) -> None:
    parser = command(commands, "export", "write the portable ONNX graph of a model")
    add_choices(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--graph-only", action="store_true", help="no weights; a config.json is enough"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


#: The functions that add each command.
COMMANDS = (
    _add_list,
    _add_show,
    _add_plan,
    _add_build,
    _add_adopt,
    _add_export,
)
