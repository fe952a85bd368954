# SPDX-License-Identifier: Apache-2.0
"""How long-running work reports its progress. The library reports; who shows it, and how, is up to the caller."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


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
    def stage(
        self, name: str, total: int | None = None, unit: str = "B"
    ) -> Iterator[Callable[[int], None]]:
        """Time and report one stage; yields the function that counts its work."""
        begun = time.perf_counter()
        self.reporter.begin(name, total, unit)
        try:
            yield self.reporter.advance
        finally:
            self.reporter.end()
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - begun, 3)


def peak_rss_bytes() -> int:
    """Return the process's highest resident set so far, mapped files included, in bytes."""
    with suppress(OSError):  # other systems than Linux
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    # Not on Linux, where a process begins with what the one that started it had reached.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
