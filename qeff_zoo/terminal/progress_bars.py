# SPDX-License-Identifier: Apache-2.0
"""Progress bars on stderr, one per stage."""

import sys
from typing import Any

from tqdm import tqdm

from qeff_zoo.terminal.progress import Reporter, Silent
from qeff_zoo.terminal.sanitize import as_is


class Bars:
    """A `qeff_zoo.terminal.progress.Reporter` for people."""

    def __init__(self) -> None:
        self._bar: Any = None

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Open a bar; stages without a known total show their time."""
        layout = (
            "{desc:<10} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {rate_fmt} {elapsed}"
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


def reporter(*, quiet: bool = False) -> Reporter:
    """Show progress bars to a person, and nothing to a pipe."""
    return Silent() if quiet or not sys.stderr.isatty() else Bars()
