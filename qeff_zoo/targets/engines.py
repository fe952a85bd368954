# SPDX-License-Identifier: Apache-2.0
"""Python packages of targets' compilers and runtimes: refusals of missing ones, and of unsupported versions.

Also descriptions of how a compiler's process ended.
"""

import shutil
import signal
from pathlib import Path

from qeff_zoo.errors import CompileError, GenerationError
from qeff_zoo.package import Package
from qeff_zoo.versions import installed

_LITTLE_ROOM = 1 << 20  # bytes of a disk that is full


def require_to_compile(target: str, engine: str, extra: str) -> None:
    """Refuse a build whose compiler is missing.

    Args:
        target: Name of the target.
        engine: Name of the Python package.
        extra: Extra of qeff-zoo that installs it.

    Raises:
        CompileError: The package is not installed.
    """
    if installed(engine) is None:
        raise CompileError(
            f"Target {target!r} needs {engine}, which is not installed. Expected the extra `{extra}`. Run `pip install "
            f"'qeff-zoo[{extra}]'`."
        )


def require_to_run(package: Package, engine: str) -> None:
    """Refuse a package that requires another version of its runtime.

    Args:
        package: Package with its requirements.
        engine: Name of the Python package.

    Raises:
        GenerationError: The runtime is not installed, or has an unsupported version.
    """
    from packaging.specifiers import SpecifierSet

    version, wanted = installed(engine), package.manifest["target"]["needs"].get(engine, "")
    if version is None or not SpecifierSet(wanted).contains(version, prereleases=True):
        raise GenerationError(
            f"Cannot run {str(package.path)!r}: {engine} {version or 'of no version'} is installed. Expected "
            f"{engine}{wanted}, by which it was compiled. Run `pip install '{engine}{wanted}'`, or build the package "
            "again."
        )


def end(code: int, stderr: str, folder: Path) -> tuple[str, str]:
    """Return how a compiler's process ended, and advice.

    Args:
        code: Exit code of the process, or of its shell.
        stderr: Output of the process.
        folder: Folder of its output files.
    """
    killed = code - 128 if code > 128 else -code
    how, advice = f"ended with {code}", "Correct what it says."
    if 0 < killed < signal.NSIG:
        how = f"was killed by {signal.Signals(killed).name}"
        advice = "If the machine ran out of memory, compile on a larger one."
    if "No space left" in stderr or shutil.disk_usage(folder).free < _LITTLE_ROOM:
        how += f", and {str(folder)!r} has no room left"
        advice = "Free some, or set QEFF_HOME to a larger disk."
    return how, advice
