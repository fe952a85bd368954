# SPDX-License-Identifier: Apache-2.0
"""The `finetune` command: from a checkpoint and data to an adapter or a checkpoint."""

import argparse
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.options import command
from qeff_zoo.finetuning.config import Config, flag
from qeff_zoo.terminal.printing import print_json

if TYPE_CHECKING:
    from qeff_zoo.finetuning.finetune import Finetuned

_GROUPS = {
    "model": "the model",
    "peft_config": "the adapter",
    "dataset": "the data",
    "training": "training",
    "optimizers": "the optimizer",
    "scheduler": "the learning rate",
    "callbacks": "stopping and drawing",
}


def finetune_command(arguments: argparse.Namespace) -> None:
    """Fine-tune, and print the path of the adapter or model."""
    from qeff_zoo.finetuning.config_files import read

    config = read(
        arguments.config, {field.name: getattr(arguments, field.name) for field in fields(Config)}
    )
    train(config, arguments)


def train(config: Config, arguments: argparse.Namespace) -> None:
    """Fine-tune, and print the result.

    Args:
        config: Config of the run.
        arguments: Arguments of the command: `resume`, `quiet` and `json`.
    """
    from qeff_zoo.finetuning.finetune import finetune

    result = finetune(config, resume=arguments.resume, reporter=reporter(arguments))
    if result is None:
        return  # the first process of torchrun prints it
    if arguments.json:
        print_json(result.as_dict())
        return
    print(_summary(result), file=sys.stderr)
    print(result.path)


def _summary(result: "Finetuned") -> str:
    """Return a summary of the training data and the loss."""
    train = result.train
    lines = [
        f"{train['examples']:,} examples of {train['tokens']:,} tokens, {result.steps:,} steps, {result.seconds:,.1f} s"
    ]
    for name, part in (("to train on", result.train), ("to validate on", result.validation)):
        if part.get("cut"):
            lines.append(
                f"{part['cut']:,} rows {name} were longer than max_length and cut; {part['dropped']:,} of them had no "
                "answer left, and were dropped"
            )
    if result.first:
        lines.append(f"before  {_figures(result.first)}")
        lines.append(f"after   {_figures(result.last)}")
    return "\n".join(lines)


def _figures(entry: object) -> str:
    assert isinstance(entry, dict)
    names = {"eval_loss": "loss", "eval_perplexity": "perplexity", "eval_accuracy": "accuracy"}
    shown = [f"{text} {entry[name]:.4f}" for name, text in names.items() if name in entry]
    return f"{', '.join(shown)} at step {entry['step']:,}"


# --- arguments ----------------------------------------------------------------------------------


def _add_finetune(commands: Any) -> None:
    parser = command(commands, "finetune", "train a LoRA adapter, or all weights, of a checkpoint")
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG.yaml",
        help="settings; flags override them",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="last",
        metavar="CHECKPOINT",
        help="continue from a checkpoint of the run: its name (default: the last one)",
    )
    groups = {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}
    types = get_type_hints(Config)
    for field in fields(Config):
        groups[field.metadata["section"]].add_argument(
            flag(field.name), help=_help(field), **_facts(types[field.name])
        )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


def _facts(kind: Any) -> dict[str, Any]:
    """Return the argparse settings of a flag; its value is parsed like an entry of the file."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    names = {"int": "N", "float": "X", "str": "TEXT", "Mapping": "JSON", "tuple": "NAME,NAME"}
    text = str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)
    return {"metavar": next((short for name, short in names.items() if name in text), "TEXT")}


def _help(one: Field[Any]) -> str:
    """Return the help of a field: its description, values and default."""
    allowed = f": {', '.join(one.metadata['allowed'])}" if one.metadata["allowed"] else ""
    default = one.default
    if default in (MISSING, None, "", False):
        return f"{one.metadata['help']}{allowed}"
    shown = ",".join(default) if isinstance(default, tuple) else default
    shown = "on" if shown is True else shown
    return f"{one.metadata['help']}{allowed} (default: {shown})".replace("%", "%%")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = ((_add_finetune, {"finetune": finetune_command}),)
