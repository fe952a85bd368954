# SPDX-License-Identifier: Apache-2.0
"""Requests that run or wait, of which a server takes only so many."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qeff_zoo.errors import BusyError

_SMALL = 1 << 20  # bytes of a body; what takes no more does not wait for what takes more
_SHARE = 4  # the memory of small bodies is this part of all


class Bodies:
    """Counts the bytes of bodies that are received, or whose requests run or wait; for the thread of the event loop.

    Args:
        most: Bytes of all of them.
    """

    def __init__(self, most: int) -> None:
        small = most // _SHARE
        #: Bytes that are left for bodies that are small (True), and for those that are not.
        self._left = {True: small, False: most - small}

    @contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """Count a body until the end of the block.

        Returns:
            A function that adds bytes to it; it raises `BusyError` if there is no room for them.
        """
        size, is_small = 0, True

        def grow(nbytes: int) -> None:
            nonlocal size, is_small
            self._left[is_small] += size
            size, is_small = size + nbytes, size + nbytes <= _SMALL
            self._left[is_small] -= size
            if self._left[is_small] < 0:
                raise BusyError(
                    f"The server has no memory for a body of {size:,} bytes beside those of other requests; expected "
                    "fewer or smaller requests at a time. Try again later."
                )

        try:
            yield grow
        finally:
            self._left[is_small] += size


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
