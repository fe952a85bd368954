# SPDX-License-Identifier: Apache-2.0
"""Requests that run or wait, of which a server takes only so many."""

from collections.abc import Iterator
from contextlib import contextmanager

from qeff_zoo.errors import BusyError


class Waiting:
    """Counts the requests of a queue; for the thread of the event loop.

    Args:
        most: That may wait, while one runs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: Requests that run or wait, and those that no longer do.
        self.active = self.ended = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request as long as it takes.

        Raises:
            BusyError: Too many requests wait already.
        """
        if self.active > self._most:
            raise BusyError(
                f"{self.active:,} requests run or wait; expected at most {self._most:,}. Try again later."
            )
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self.ended += 1
