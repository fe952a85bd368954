# SPDX-License-Identifier: Apache-2.0
"""Progress of a validation in phases: each has a total once it is known, so that its end can be estimated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from qeff_zoo.terminal.progress import Reporter

#: Callback after every step, with the number of its tokens, or with 1.
Progress: TypeAlias = Callable[[int], None]


class Phase:
    """Counter of one phase, which is a stage of a reporter.

    Args:
        reporter: Shows it.
        name: Name of the phase.
    """

    def __init__(self, reporter: Reporter, name: str) -> None:
        self._reporter, self._name, self._begun = reporter, name, False

    def begin(self, tokens: int | None) -> None:
        """Begin the phase; the number of its tokens is None if its steps are counted."""
        if not self._begun:
            self._begun = True
            self._reporter.begin(self._name, tokens, "step" if tokens is None else "token")

    def __call__(self, amount: int) -> None:
        self.begin(None)
        self._reporter.advance(amount)

    def end(self) -> None:
        """End the phase, if it began."""
        if self._begun:
            self._reporter.end()


class Phases:
    """The phases of one validation.

    Args:
        reporter: Shows them.
        count: Their number.
    """

    def __init__(self, reporter: Reporter, count: int) -> None:
        self._reporter, self._count, self._number = reporter, count, 0

    @contextmanager
    def next(self, name: str) -> Iterator[Phase]:
        """Count the steps of the next phase in a block."""
        self._number += 1
        phase = Phase(self._reporter, f"validate {self._number}/{self._count}: {name}")
        try:
            yield phase
        finally:
            phase.end()


def expect(progress: Progress, tokens: int) -> None:
    """Begin a phase with the number of its tokens; a plain callback has no use for it."""
    if isinstance(progress, Phase):
        progress.begin(tokens)
