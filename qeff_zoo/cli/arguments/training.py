# SPDX-License-Identifier: Apache-2.0
"""What is done to a checkpoint's weights before it is built: `finetune`."""

import argparse
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from qeff_zoo.cli.arguments.options import command
from qeff_zoo.finetuning.config import Config, flag

_GROUPS = {
    "model": "the model",
    "peft_config": "the adapter",
    "dataset": "the data",
    "training": "training",
    "optimizers": "the optimizer",
    "scheduler": "the learning rate",
    "callbacks": "stopping and drawing",
}


def _add_finetune(commands: Any) -> None:
    parser = command(commands, "finetune", "train an adapter, or all weights, of a checkpoint")
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG.yaml",
        help="what is chosen; flags win over it",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="last",
        metavar="CHECKPOINT",
        help="go on from a checkpoint of the run: its name, or the last one",
    )
    groups = {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}
    types = get_type_hints(Config)
    for one in fields(Config):
        groups[one.metadata["section"]].add_argument(
            flag(one.name), help=_help(one), **_facts(types[one.name])
        )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _facts(kind: Any) -> dict[str, Any]:
    """Say how a flag is given; what it is given is read as an entry of the file is."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    names = {"int": "N", "float": "X", "str": "TEXT", "Mapping": "JSON", "tuple": "NAME,NAME"}
    text = str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)
    return {"metavar": next((short for name, short in names.items() if name in text), "TEXT")}


def _help(one: Field[Any]) -> str:
    """Return what a field is, its values and its default."""
    allowed = f": {', '.join(one.metadata['allowed'])}" if one.metadata["allowed"] else ""
    default = one.default
    if default in (MISSING, None, "", False):
        return f"{one.metadata['help']}{allowed}"
    shown = ",".join(default) if isinstance(default, tuple) else default
    shown = "on" if shown is True else shown
    return f"{one.metadata['help']}{allowed} (default: {shown})".replace("%", "%%")


#: The functions that add each command.
COMMANDS = (_add_finetune,)
