# SPDX-License-Identifier: Apache-2.0
"""The command line: argv -> one typed call -> one printed result.

stdout has the result, stderr the progress, both without terminal control sequences. Exit codes: 0 done, 1 an error, 2
wrong usage; `resolve` and `pull` exit with their verdict.
"""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from typing import NoReturn

from qeff_zoo.cli.options import CommandParser
from qeff_zoo.cli.reporting import report
from qeff_zoo.errors import ZooError, did_you_mean
from qeff_zoo.settings import go_offline
from qeff_zoo.terminal.progress import out_of_memory
from qeff_zoo.terminal.sanitize import escaping

from . import (
    building,
    chatting,
    checking,
    farming,
    finetuning,
    housekeeping,
    measuring,
    predicting,
    publishing,
    pulling,
    quantizing,
    recipes,
    resolving,
    running,
    signing,
    sites,
)

#: Packages that a command may lack, and the extras that install them.
_EXTRAS = {
    "markupsafe": "site",
    **dict.fromkeys(("numpy", "onnxruntime", "tokenizers", "jinja2", "llguidance"), "run"),
    "matplotlib": "plot",
    "opentelemetry": "otel",
    "ray": "farm",
    **dict.fromkeys(("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("datasets", "peft", "tensorboardX", "trl", "yaml"), "finetune"),
    **dict.fromkeys(
        ("accelerate", "ml_dtypes", "onnx", "onnx_ir", "onnxscript", "torch", "transformers"),
        "build",
    ),
}


#: Errors of a disk or of a file's name, which are no defects of any command.
_OF_THE_DISK = (
    *(
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.ESTALE,
    ),
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENFILE),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments, unknown = parser().parse_known_args(argv)
    if unknown:
        _refuse(arguments.parser, unknown)
    if getattr(arguments, "offline", False):
        go_offline()
    return guarded(lambda: _COMMANDS[arguments.command](arguments), argv)


def _refuse(command: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Exit with the usage of a command, and with the flags that were probably meant."""
    flags = [flag for action in command._actions for flag in action.option_strings]
    near = "".join(did_you_mean(word.partition("=")[0], flags) for word in unknown)
    command.error(f"unrecognized arguments: {' '.join(unknown)}{near and '.'}{near}")


def guarded(command: Callable[[], int | None], argv: Sequence[str]) -> int:
    """Run a command; print its error in one line, and return its exit code.

    Args:
        command: Function of the command.
        argv: Arguments of the command.
    """
    with redirect_stdout(escaping(sys.stdout)), redirect_stderr(escaping(sys.stderr)):
        try:
            return _run(command)
        except Exception as error:  # a defect, or a lack of memory: reported in one line
            where = f"in `qeff-zoo {' '.join(argv[:1])}`"
            try:
                message = str(out_of_memory(error, where) or report(error, argv))
            except MemoryError as short:
                message = str(out_of_memory(short, where))
            print(f"qeff-zoo: {message}", file=sys.stderr)
            return 1


def _run(command: Callable[[], int | None]) -> int:
    try:
        code = int(command() or 0)
        sys.stdout.flush()  # raises here, not at exit, if the reader has closed it
    except ZooError as error:
        print(f"qeff-zoo: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        first = (
            "torch==2.13.0 " if extra in ("build", "finetune") else ""
        )  # unpinned, pip may bring gigabytes of CUDA
        print(
            f"qeff-zoo: This command needs {error.name!r}, which is not installed. Expected the extra {extra!r}. "
            f"Run `pip install {first}'qeff-zoo[{extra}]'`.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("qeff-zoo: interrupted; nothing half-made counts as done.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        at = f" {os.fsdecode(error.filename)!r}" if isinstance(error.filename, str | bytes) else ""
        print(
            f"qeff-zoo: Cannot use the file or folder{at or ' that is meant'}: {error.strerror}. Expected one that "
            "this user may read, or write to, on a disk with room. Correct its name or its permissions, or free space.",
            file=sys.stderr,
        )
        return 1
    return code


_MODULES = (
    building,
    running,
    chatting,
    measuring,
    checking,
    recipes,
    quantizing,
    finetuning,
    predicting,
    farming,
    pulling,
    resolving,
    publishing,
    sites,
    signing,
    housekeeping,
)
#: Groups of `--help`, and the commands of each.
_GROUPS = {
    "build packages": ("build", "plan", "export", "adopt", "farm"),
    "run packages": ("run", "chat", "serve", "serve-args", "bench"),
    "check packages": ("inspect", "validate", "predict"),
    "change checkpoints": ("quantize", "finetune"),
    "find shared packages": ("ls", "resolve", "pull", "lock"),
    "share packages": ("publish", "yank", "copy", "bundle", "sign", "trust", "site"),
    "this machine": ("doctor", "cache", "repair"),
    "architectures": ("list", "show", "new"),
}
_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    name: handler
    for module in _MODULES
    for _, handlers in module.COMMANDS
    for name, handler in handlers.items()
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: its namespace has `command`, and one attribute for each option."""
    parser = CommandParser(
        prog="qeff-zoo",
        usage="qeff-zoo [-h] [-V] COMMAND ...",
        description="Build, validate and run compiled packages of Hugging Face models.",
        epilog="Run `qeff-zoo COMMAND --help` for the options of a command.",
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"qeff-zoo {version('qeff-zoo')}"
    )
    commands = parser.add_subparsers(prog="qeff-zoo", metavar="COMMAND", required=True)
    for module in _MODULES:
        for add, _ in module.COMMANDS:
            add(commands)
    # argparse has one list of commands; each group shows its part of it.
    commands.help = argparse.SUPPRESS
    listed = {action.dest: action for action in commands._choices_actions}
    for title, names in _GROUPS.items():
        parser.add_argument_group(title)._group_actions.extend(listed[name] for name in names)
    return parser
