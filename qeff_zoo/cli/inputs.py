# SPDX-License-Identifier: Apache-2.0
"""Inputs of commands: files, packages to run, and the options of a build."""

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import Task
from qeff_zoo.contract.commands import INPUTS
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.plan.request import OPTIONS

if TYPE_CHECKING:
    from qeff_zoo.package import Package


def usable_package(reference: str) -> "Package":
    """Find a package to run, or pull it, and print its warnings."""
    from qeff_zoo.api import find_usable

    with saying_warnings():
        return find_usable(reference, lambda line: print(line, file=sys.stderr))


def check_outputs(task: Task, inputs: Sequence[Any], outputs: Sequence[str]) -> None:
    """Check the files that a `run` writes, before a package is opened.

    Args:
        task: Task of the package.
        inputs: Inputs of the run.
        outputs: Paths of the files.

    Raises:
        GenerationError: There is not a file for each input, one has another suffix, or a folder does not exist.
    """
    if outputs and len(outputs) != len(inputs):
        flag = INPUTS[task.reads][0]
        raise GenerationError(
            f"--output is given {len(outputs)} times, and --{flag} {len(inputs)} times; expected a file for each "
            f"{task.reads}. Repeat --output, or leave it out."
        )
    for path in map(Path, outputs):
        if path.suffix.lower() not in task.commands.outputs:
            raise GenerationError(
                f"--output is {str(path)!r}; expected a name that ends with {' or '.join(task.commands.outputs)}. "
                "Rename it."
            )
        if not path.parent.is_dir():
            raise GenerationError(
                f"--output is {str(path)!r}, and its folder does not exist; expected a folder. Create it."
            )


def drafting(arguments: argparse.Namespace) -> Any:
    """Return the source of draft tokens: a package, "lookup", "heads" or None."""
    from qeff_zoo.runtime.engine.speculation import OWN

    draft = arguments.draft
    return draft if draft in (None, *OWN) else usable_package(draft)


@contextmanager
def saying_warnings() -> Iterator[None]:
    """Print the warnings of the library, one per line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(warning.message, file=sys.stderr)


def source_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that select a checkpoint, besides its name."""
    return {name: getattr(arguments, name) for name in ("revision", "config_from", "gguf_file")}


def choices_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a build or of a package, by the fields of `qeff_zoo.plan.request.Request`."""
    if arguments.activations is not None:
        raise PlanError(
            [
                f"--activations is {arguments.activations!r}, but how activations are rounded is not chosen: products "
                "of integers round their left sides to int8 block by block, and schemes that a checkpoint stores are "
                "not applied (the record says which). Leave it out; `--weights fp32` rounds nothing."
            ]
        )
    given = {name: getattr(arguments, name) for name in OPTIONS}
    if arguments.enable_qnn is not None:
        implied = {"target": "qnn-aic", "qnn_config": arguments.enable_qnn}
        given |= {
            name: _once(name, given[name], it) for name, it in implied.items() if it is not True
        }
    return {name: tuple(it) if isinstance(it, list) else it for name, it in given.items()}


def _once(name: str, given: Any, implied: Any) -> Any:
    """Return the value that --enable-qnn sets for an option; refuse a contradicting one."""
    if given not in (None, implied):
        flag = OPTIONS[name].flag
        raise PlanError(
            [
                f"{flag} is {given!r}, and --enable-qnn means {flag} {implied!r}. Leave one of them out."
            ]
        )
    return implied
