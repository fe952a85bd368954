# SPDX-License-Identifier: Apache-2.0
"""Python packages that targets compile and run with: refused where one is missing, or another version is needed.

And how a compiler that is a process of its own came to its end, in words.
"""

import shutil
import signal
from pathlib import Path

from qeff_zoo.errors import CompileError, GenerationError
from qeff_zoo.package import Package
from qeff_zoo.versions import installed

_LITTLE_ROOM = 1 << 20  # bytes of a disk that is full


def require_to_compile(target: str, engine: str, extra: str) -> None:
    """Refuse a build that lacks what compiles it.

    Args:
        target: Name of the target.
        engine: Name of the Python package.
        extra: Of qeff-zoo, which has it.

    Raises:
        CompileError: It is not installed.
    """
    if installed(engine) is None:
        raise CompileError(
            f"Target {target!r} needs {engine}, which is not installed. Expected the extra `{extra}`. Run `pip install "
            f"'qeff-zoo[{extra}]'`."
        )


def require_to_run(package: Package, engine: str) -> None:
    """Refuse a package that another version of what runs it was needed for.

    Args:
        package: That says what it needs.
        engine: Name of the Python package.

    Raises:
        GenerationError: It is not installed, or in a version that will not do.
    """
    from packaging.specifiers import SpecifierSet

    found, wanted = installed(engine), package.manifest["target"]["needs"].get(engine, "")
    if found is None or not SpecifierSet(wanted).contains(found, prereleases=True):
        raise GenerationError(
            f"Cannot run {str(package.path)!r}: {engine} {found or 'of no version'} is installed. Expected "
            f"{engine}{wanted}, by which it was compiled. Run `pip install '{engine}{wanted}'`, or build the package "
            "again."
        )


def end(code: int, said: str, folder: Path) -> tuple[str, str]:
    """Say how a compiler's process ended, and what to do about it.

    Args:
        code: That its process returned, or its shell.
        said: What it wrote.
        folder: That it wrote to.
    """
    killed = code - 128 if code > 128 else -code
    how, advice = f"ended with {code}", "Correct what it says."
    if 0 < killed < signal.NSIG:
        how = f"was killed by {signal.Signals(killed).name}"
        advice = "If the machine ran out of memory, compile on a larger one."
    if "No space left" in said or shutil.disk_usage(folder).free < _LITTLE_ROOM:
        how += f", and {str(folder)!r} has no room left"
        advice = "Free some, or set QEFF_HOME to a larger disk."
    return how, advice
