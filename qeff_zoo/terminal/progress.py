# SPDX-License-Identifier: Apache-2.0
"""How long-running work reports its progress. The library reports; who shows it, and how, is up to the caller.

An error of memory names the stage, and the memory that it requires.
"""

import errno
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from qeff_zoo.errors import OutOfMemoryError, Translating, ZooError

#: How libraries say that memory ran out, and how much they asked for.
_SHORT = re.compile(
    r"can't allocate memory|cannot allocate memory|unable to allocate|failed to allocate memory|bad_?alloc"
    r"|not enough memory|out of memory|failed to map segment",
    re.IGNORECASE,
)
_NO_THREAD = "can't start new thread"  # of Python
_REQUESTED = re.compile(
    r"(?:allocate|size:?|of size) (?P<size>[0-9][0-9.]*)(?: (?P<unit>[KMGT]?i?B|bytes))?",
    re.IGNORECASE,
)
_UNITS = {"kib": 10, "mib": 20, "gib": 30, "tib": 40}


class Reporter(Protocol):
    """Shows the progress of one stage after another."""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Start a stage; `total` is in units, "B" for bytes, or None if unknown."""

    def advance(self, amount: int) -> None:
        """Count work done in the stage."""

    def end(self) -> None:
        """Finish the stage."""


class Silent:
    """Shows nothing."""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Ignore it."""

    def advance(self, amount: int) -> None:
        """Ignore it."""

    def end(self) -> None:
        """Ignore it."""


@dataclass
class Stopwatch:
    """Measures stages while they are reported.

    Args:
        reporter: Shows them.
        seconds: Wall time by stage, in the order of their first start.
    """

    reporter: Reporter
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[Reporter]:
        """Time a stage of several parts; yields the reporter, which shows each of them as a stage."""
        begun = time.perf_counter()
        try:
            with Translating(lambda error: out_of_memory(error, f"in the stage {name!r}")):
                yield self.reporter
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - begun, 3)

    @contextmanager
    def stage(
        self, name: str, total: int | None = None, unit: str = "B"
    ) -> Iterator[Callable[[int], None]]:
        """Time and report one stage; yields the function that counts its work."""
        with self.timed(name) as reporter:
            reporter.begin(name, total, unit)
            try:
                yield reporter.advance
            finally:
                reporter.end()


def peak_rss_bytes() -> int:
    """Return the process's highest resident set so far, mapped files included, in bytes."""
    with suppress(OSError):  # other systems than Linux
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    # Not on Linux, where a process begins with what the one that started it had reached.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def out_of_memory(error: BaseException, where: str) -> OutOfMemoryError | None:
    """Return our error if another one means that memory ran out; None otherwise, or if it is reported already.

    Args:
        error: Error of Python, the system or a library.
        where: Current work: "in the stage 'weights'".
    """
    if str(error) == _NO_THREAD:
        return OutOfMemoryError(
            f"Cannot start a thread {where}: memory or processes have run out. Expected both to be free for this "
            "process. Free them, or raise its limits (ulimit -v, ulimit -u, those of its container)."
        )
    is_short = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if isinstance(error, ZooError) or not (is_short or _SHORT.search(str(error))):
        return None
    request = _REQUESTED.search(str(error))
    more = (
        float(request["size"]) * 2.0 ** _UNITS.get((request["unit"] or "").lower(), 0)
        if request
        else 0
    )
    peak = peak_rss_bytes()
    needed = f"about {(peak + more) / 1e9:.1f} GB" if more else f"more than {peak / 1e9:.1f} GB"
    return OutOfMemoryError(
        f"Out of memory {where}, which needs {needed}; {peak / 1e9:.1f} GB were taken. Expected that much memory to be "
        "free for this process. Free memory, raise its limit, or use a larger machine."
    )
