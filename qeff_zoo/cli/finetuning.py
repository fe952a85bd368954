# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint and data to an adapter, or a checkpoint: `finetune`."""

import argparse
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.printing import print_json
from qeff_zoo.finetuning.config import Config

if TYPE_CHECKING:
    from qeff_zoo.finetuning.finetune import Finetuned


def finetune_command(arguments: argparse.Namespace) -> None:
    """Train, and print the path of the adapter or model."""
    from qeff_zoo.finetuning.config_files import read

    config = read(
        arguments.config, {one.name: getattr(arguments, one.name) for one in fields(Config)}
    )
    train(config, arguments)


def train(config: Config, arguments: argparse.Namespace) -> None:
    """Train, and print what came of it.

    Args:
        config: Of the run.
        arguments: Of a command: `resume`, `quiet` and `json`.
    """
    from qeff_zoo.finetuning.finetune import finetune

    found = finetune(config, resume=arguments.resume, reporter=reporter(arguments))
    if found is None:
        return  # the first process of torchrun says it
    if arguments.json:
        print_json(found.as_dict())
        return
    print(_summary(found), file=sys.stderr)
    print(found.path)


def _summary(found: "Finetuned") -> str:
    """Say what was learnt from, and what became of the loss."""
    train = found.train
    lines = [
        f"{train['examples']:,} examples of {train['tokens']:,} tokens, {found.steps:,} steps, {found.seconds:,.1f} s"
    ]
    for name, part in (("to train on", found.train), ("to validate on", found.validation)):
        if part.get("cut"):
            lines.append(
                f"{part['cut']:,} rows {name} were longer than max_length and cut; {part['dropped']:,} of them had no "
                "answer left, and were dropped"
            )
    if found.first:
        lines.append(f"before  {_figures(found.first)}")
        lines.append(f"after   {_figures(found.last)}")
    return "\n".join(lines)


def _figures(entry: object) -> str:
    assert isinstance(entry, dict)
    names = {"eval_loss": "loss", "eval_perplexity": "perplexity", "eval_accuracy": "accuracy"}
    shown = [f"{text} {entry[name]:.4f}" for name, text in names.items() if name in entry]
    return f"{', '.join(shown)} at step {entry['step']:,}"
