# SPDX-License-Identifier: Apache-2.0
"""Limits on running and waiting requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime import Stats

_SMALL = 1 << 20  # bytes of a body; smaller bodies do not wait for larger ones
_SHARE = 4  # small bodies have this fraction of the memory


class Bodies:
    """Counter of the bytes of received bodies until the ends of their requests; for the thread of the event loop.

    Args:
        most: Maximum number of bytes in total.
    """

    def __init__(self, most: int) -> None:
        small = most // _SHARE
        #: Remaining bytes for small bodies (True), and for others (False).
        self._left = {True: small, False: most - small}

    @contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """Count a body until the end of the block.

        Returns:
            A function that adds bytes to the body; it raises `BusyError` if they exceed the limit.
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
    """Counter of the requests of a queue; for the thread of the event loop.

    Args:
        most: Maximum number of waiting requests, besides a running one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: Numbers of running or waiting requests, and of ended ones.
        self.active = self.ended = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request for its duration.

        Raises:
            BusyError: The queue is full.
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

    def stats(self, *, rows: int, running: int, prompt_tokens: int = 0) -> Stats:
        """Return the statistics of a queue that generates nothing.

        Args:
            rows: Maximum number of inputs of a call.
            running: Number of requests in the running call.
            prompt_tokens: Number of tokens so far.
        """
        return Stats(
            rows=rows,
            running=running,
            waiting=max(0, self.active - running),
            finished={"done": self.ended},
            prompt_tokens=prompt_tokens,
            reused_tokens=0,
            generated_tokens=0,
        )
