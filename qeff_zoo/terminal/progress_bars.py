# SPDX-License-Identifier: Apache-2.0
"""Progress bars on stderr, one per stage."""

import sys
import time
from typing import Any

from tqdm import tqdm

from qeff_zoo.terminal.printing import print_progress
from qeff_zoo.terminal.progress import Reporter, Silent
from qeff_zoo.terminal.sanitize import as_is

_PAUSE = 30.0  # seconds between two lines of a log


class Bars:
    """A `qeff_zoo.terminal.progress.Reporter` for people."""

    def __init__(self) -> None:
        self._bar: Any = None

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Open a bar; stages without a known total show their time."""
        layout = (
            "{desc:<10} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {rate_fmt} {elapsed}<{remaining}"
            if total
            else "{desc:<10} {elapsed}"
        )
        self._bar = tqdm(
            total=total,
            desc=stage,
            unit=unit,
            unit_scale=True,
            bar_format=layout,
            file=as_is(sys.stderr),  # which a bar steers
            leave=True,
        )

    def advance(self, amount: int) -> None:
        """Move the bar."""
        assert self._bar is not None
        self._bar.update(amount)

    def end(self) -> None:
        """Close the bar."""
        assert self._bar is not None
        self._bar.close()


class Lines:
    """A `qeff_zoo.terminal.progress.Reporter` for a log: a line for every half minute of a stage with a total."""

    def __init__(self) -> None:
        self._stage, self._unit = "", ""
        self._total: int | None = None
        self._done, self._begun, self._written = 0, 0.0, 0.0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Remember a stage."""
        self._stage, self._total, self._unit, self._done = stage, total, unit, 0
        self._begun = self._written = time.monotonic()

    def advance(self, amount: int) -> None:
        """Write a line if the last one was long ago."""
        self._done, now = self._done + amount, time.monotonic()
        if not self._total or now - self._written < _PAUSE:
            return
        self._written = now
        done, total = (tqdm.format_sizeof(number) for number in (self._done, self._total))
        left = max(0.0, (now - self._begun) * (self._total / max(1, self._done) - 1))
        share = min(1.0, self._done / self._total)
        unit = "B" if self._unit == "B" else f" {self._unit}s"
        print_progress(
            f"{self._stage}: {share:.0%}, {done} of {total}{unit}, about {tqdm.format_interval(left)} left"
        )

    def end(self) -> None:
        """Forget the stage."""
        self._total = None


def reporter(*, quiet: bool = False) -> Reporter:
    """Show progress bars to a person, and a line now and then to a log."""
    if quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


class Board:
    """Bars of many builds: one in all, and one for each build under way.

    Args:
        total: Number of builds.
    """

    def __init__(self, total: int) -> None:
        layout = "{desc:<60} {n_fmt:>5}/{total_fmt} |{bar}| {elapsed}"
        self._options: dict[str, Any] = {"file": as_is(sys.stderr), "bar_format": layout}
        self._all = tqdm(total=total, desc="all", **self._options)
        self._bars: dict[int, Any] = {}
        self._red = 0

    def begin(self, number: int, name: str, step: str, total: int) -> None:
        """Show a step of a build."""
        if number not in self._bars:
            self._bars[number] = tqdm(total=total, leave=False, **self._options)
        self._bars[number].set_description_str(f"{step:<8} {name}"[:60])

    def advance(self, number: int) -> None:
        """Count a step of a build."""
        self._bars[number].update(1)

    def end(self, number: int, failure: str) -> None:
        """Remove a build, which need not have begun, and count it."""
        if number in self._bars:
            self._bars.pop(number).close()
        self._red += bool(failure)
        self._all.set_description_str(f"all ({self._red} red)" if self._red else "all")
        self._all.update(1)
        if self._all.n == self._all.total:
            self._all.close()


def board(total: int, *, quiet: bool = False) -> Board | None:
    """Show bars of many builds to a person, and nothing to a pipe."""
    return None if quiet or not sys.stderr.isatty() else Board(total)
