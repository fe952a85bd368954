# SPDX-License-Identifier: Apache-2.0
"""The command line: argv -> one typed call -> one printed answer.

stdout is the answer, stderr is progress. Both are shown without what would steer a terminal. Exit codes: 0 done, 1 an
error, 2 wrong usage; `resolve` and `pull` exit with their verdict.
"""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout

from qeff_zoo.cli.arguments import parser
from qeff_zoo.cli.building import adopt_command, build_command, export_command, plan_command
from qeff_zoo.cli.checking import inspect_command, validate_command
from qeff_zoo.cli.finetuning import finetune_command
from qeff_zoo.cli.housekeeping import (
    cache_gc_command,
    cache_ls_command,
    cache_rm_command,
    cache_verify_command,
    doctor_command,
    new_command,
)
from qeff_zoo.cli.measuring import bench_command
from qeff_zoo.cli.predicting import predict_command
from qeff_zoo.cli.publishing import copy_command, publish_command
from qeff_zoo.cli.pulling import (
    bundle_export_command,
    bundle_import_command,
    lock_command,
    pull_command,
    repair_command,
)
from qeff_zoo.cli.quantizing import quantize_command
from qeff_zoo.cli.recipes import list_command, show_command
from qeff_zoo.cli.reporting import report
from qeff_zoo.cli.resolving import ls_command, resolve_command, yank_command
from qeff_zoo.cli.running import run_command, serve_args_command, serve_command
from qeff_zoo.cli.signing import sign_command, trust_add_command, trust_ls_command, trust_rm_command
from qeff_zoo.errors import ZooError
from qeff_zoo.settings import go_offline
from qeff_zoo.terminal.progress import out_of_memory
from qeff_zoo.terminal.sanitize import escaping

#: Packages that a command may lack -> the extra that brings them.
_EXTRAS = {
    **dict.fromkeys(("numpy", "onnxruntime", "tokenizers", "jinja2", "llguidance"), "run"),
    "matplotlib": "plot",
    **dict.fromkeys(("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("datasets", "peft", "tensorboardX", "trl", "yaml"), "finetune"),
    **dict.fromkeys(
        ("accelerate", "ml_dtypes", "onnx", "onnx_ir", "onnxscript", "torch", "transformers"),
        "build",
    ),
}


#: What a disk, or the name of a file, stands in the way with: no defect, whatever was being done.
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
    arguments = parser().parse_args(argv)
    if getattr(arguments, "offline", False):
        go_offline()
    return guarded(lambda: _COMMANDS[arguments.command](arguments), argv)


def guarded(command: Callable[[], int | None], argv: Sequence[str]) -> int:
    """Run a command; say in a line what stands in its way, and return its exit code.

    Args:
        command: Does the work.
        argv: What it was told.
    """
    with redirect_stdout(escaping(sys.stdout)), redirect_stderr(escaping(sys.stderr)):
        try:
            return _run(command)
        except Exception as error:  # a defect, or no memory: whatever it is, it is said in a line
            where = f"in `qeff-zoo {' '.join(argv[:1])}`"
            try:
                said = str(out_of_memory(error, where) or report(error, argv))
            except MemoryError as short:
                said = str(out_of_memory(short, where))
            print(f"qeff-zoo: {said}", file=sys.stderr)
            return 1


def _run(command: Callable[[], int | None]) -> int:
    try:
        code = int(command() or 0)
        sys.stdout.flush()  # here a reader that has left is noticed, and not when Python ends
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
    except BrokenPipeError:  # the reader of our output has left; nobody misses the rest of it
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


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "list": list_command,
    "show": show_command,
    "quantize": quantize_command,
    "finetune": finetune_command,
    "plan": plan_command,
    "build": build_command,
    "adopt": adopt_command,
    "export": export_command,
    "predict": predict_command,
    "run": run_command,
    "serve": serve_command,
    "bench": bench_command,
    "validate": validate_command,
    "inspect": inspect_command,
    "ls": ls_command,
    "resolve": resolve_command,
    "pull": pull_command,
    "lock": lock_command,
    "repair": repair_command,
    "bundle export": bundle_export_command,
    "bundle import": bundle_import_command,
    "yank": yank_command,
    "publish": publish_command,
    "sign": sign_command,
    "trust add": trust_add_command,
    "trust ls": trust_ls_command,
    "trust rm": trust_rm_command,
    "copy": copy_command,
    "serve-args": serve_args_command,
    "cache ls": cache_ls_command,
    "cache rm": cache_rm_command,
    "cache gc": cache_gc_command,
    "cache verify": cache_verify_command,
    "doctor": doctor_command,
    "new": new_command,
}
