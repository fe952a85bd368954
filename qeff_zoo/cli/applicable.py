# SPDX-License-Identifier: Apache-2.0
"""Options that apply to a package's or a model's task and target, for `--help` and for refusals.

The tables define them: `Task.commands` for packages, `Option` for builds.
"""

import argparse
import sys
from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import NAMES, Task, find
from qeff_zoo.contract.commands import INPUTS
from qeff_zoo.errors import GenerationError, ZooError
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.targets import NAMES as TARGETS

if TYPE_CHECKING:
    from qeff_zoo.package import Package

_FEW = 3  # tasks that a message names


def task_of(package: "Package") -> Task:
    """Return the task of a package.

    Raises:
        GenerationError: The task is unknown to this version.
    """
    if package.task not in NAMES:
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}; expected {' or '.join(NAMES)}. Run a package "
            "of such a task."
        )
    return find(package.task)


def refuse_inapplicable(command: str, task: Task, arguments: argparse.Namespace) -> Collection[str]:
    """Refuse options that do not apply to a task.

    Args:
        command: `run`, `chat`, `serve` or `bench`.
        task: Task of the package.
        arguments: Arguments of the command.

    Returns:
        The options that apply, besides those that every task has.

    Raises:
        GenerationError: An option is given that does not apply.
    """
    applicable = task.commands.options(command)
    for name in sorted(_optional(command) - {*applicable}):
        given, default = getattr(arguments, name), arguments.parser.get_default(name)
        if given is not None and given is not False and given != [] and given != default:
            raise GenerationError(_refusal(command, task, name, given, arguments.parser))
    return applicable


def _optional(command: str) -> set[str]:
    """Return the options of a command that apply to some tasks only."""
    every = [find(name).commands.options(command) for name in NAMES]
    union, common = set[str]().union(*every), {*every[0]}.intersection(*every)
    return union - common


def no_input(task: Task, arguments: argparse.Namespace) -> GenerationError:
    """Return the error of a `run` without the kind of input that a task requires.

    Args:
        task: Task of the package.
        arguments: Arguments of the command.
    """
    required, further = _inputs(task, arguments.parser)
    beside = f", and with it, if needed, {further}" if further else ""
    return GenerationError(
        f"No {task.reads} is given for {arguments.package!r}, a package for {task.name}; expected at least one. Use "
        f"{required}{beside}."
    )


def _inputs(task: Task, parser: argparse.ArgumentParser) -> tuple[str, str]:
    """Return the required inputs of a task as `run` takes them, and its optional ones."""
    usages = {
        action.dest: f"{max(action.option_strings, key=len, default='')} {action.metavar}".strip()
        for action in parser._actions
    }
    required = INPUTS[task.reads]
    others = set(task.commands.run_options) - set(required)
    further = [name for name in chain.from_iterable(INPUTS.values()) if name in others]
    return " or ".join(usages[name] for name in required), " or ".join(
        usages[name] for name in further
    )


def _refusal(
    command: str, task: Task, name: str, given: Any, parser: argparse.ArgumentParser
) -> str:
    flag = repr(str(given[0])) if name == "audio" and command == "run" else flag_of(name)
    if command == "run" and name in chain.from_iterable(INPUTS.values()):
        required, _ = _inputs(task, parser)
        return f"{flag} does not apply to {task.name}; expected {task.reads}: {required}. Leave it out."
    others = [kind for kind in NAMES if name in find(kind).commands.options(command)]
    expected = f"a package for {' or '.join(others)}" if len(others) <= _FEW else "another package"
    return (
        f"{flag} does not apply to {task.name}; expected {expected}. Leave it out; `qeff-zoo {command} PACKAGE --help` "
        "lists the options that apply."
    )


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


# --- help --------------------------------------------------------------------------------------


class ApplicableHelp(argparse.Action):
    """`--help` of a command: the options that apply to the package or model before it; `--help-all`: all of them."""

    def __init__(self, option_strings: Any, dest: str, **facts: Any) -> None:
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **facts
        )

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        """Print the help and exit."""
        if option != "--help-all":
            of_build = hasattr(namespace, "model")
            hidden, epilog = (_of_build if of_build else _of_package)(parser, namespace)
            _hide(parser, hidden)
            parser.epilog = epilog
        parser.print_help()
        sys.exit()


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add `--help` and `--help-all` to a parser that was created without `--help`."""
    parser.add_argument(
        "-h",
        "--help",
        action=ApplicableHelp,
        help="show the options that apply to the package or model named before, and exit",
    )
    parser.add_argument(
        "--help-all",
        action=ApplicableHelp,
        help="show the options of every task and target, and exit",
    )


def _hide(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    for action in parser._actions:
        if action.dest in names:
            action.help = argparse.SUPPRESS
    shown = {action for action in parser._actions if action.help != argparse.SUPPRESS}
    for group in parser._action_groups:
        if shown.isdisjoint(group._group_actions):
            group.description = None
    # argparse in Python 3.11 cannot format a group whose options are all hidden.
    exclusive = parser._mutually_exclusive_groups
    exclusive[:] = [name for name in exclusive if not shown.isdisjoint(name._group_actions)]


def _of_package(parser: argparse.ArgumentParser, namespace: Any) -> tuple[Collection[str], str]:
    """Return the options that do not apply to a package, and the text below the other options."""
    from qeff_zoo.api import find_here

    try:
        package = find_here(namespace.package) if namespace.package else None
        task = task_of(package) if package else None
    except ZooError:
        task = None
    if task is None:
        return (), "Name a package before --help for the options of its task."
    command = str(parser.get_default("command"))
    hidden = _optional(command) - {*task.commands.options(command)}
    return hidden, f"Options for {task.name}. --help-all shows those of every task."


def _of_build(parser: argparse.ArgumentParser, namespace: Any) -> tuple[Collection[str], str]:
    """Return the options that do not apply to a model and a target, and the text below the other options."""
    if namespace.model is None:
        return (), "Name a model before --help for the options of its task and target."
    target = namespace.target or TARGETS[0]
    task = _task_of_model(namespace)
    hidden = {
        name
        for name, option in OPTIONS.items()
        if (option.targets and target not in option.targets)
        or (task is not None and not task.takes(option))
    }
    scope = f"{task.name}, target {target}" if task else f"target {target}"
    return hidden, f"Options for {scope}. --help-all shows those of every task and target."


def _task_of_model(namespace: Any) -> Task | None:
    """Return the task of a build of a model; None if its configuration is unreadable, or not on this machine."""
    from qeff_zoo.checkpoint.files import read_config
    from qeff_zoo.contract.selection import choose
    from qeff_zoo.registry import recipe_for

    if namespace.task in NAMES:
        return find(namespace.task)
    file = _config_of(namespace.model, namespace.revision)
    if file is None:
        return None
    try:
        config = read_config(file)
        recipe = recipe_for(config)
    except ZooError:
        return None
    companions = [path.name for path in file.parent.iterdir()]
    classes = tuple(config.get("architectures") or ())
    return find(choose(namespace.model, recipe, classes, companions, None).task)


def _config_of(model: str, revision: str | None) -> Path | None:
    """Return a model's config.json in a folder or in the Hub's cache; None if there is none."""
    from qeff_zoo.checkpoint.files import as_path

    if path := as_path(model):
        file = path / "config.json" if path.is_dir() else path
        return file if file.name == "config.json" else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None
