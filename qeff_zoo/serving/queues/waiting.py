# SPDX-License-Identifier: Apache-2.0
"""Limits on running and waiting requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime import Stats
from qeff_zoo.serving.queues.accounts import Shares, current

_SMALL = 1 << 20  # bytes of a body; smaller bodies do not wait for larger ones
#: Number of places of a queue that a client may take whatever others need.
FEW = 16
_SHARE = 4  # small bodies have this fraction of the memory


class Bodies:
    """Counter of the bytes of received bodies until the ends of their requests; for the thread of the event loop.

    Args:
        most: Maximum number of bytes in total.
    """

    def __init__(self, most: int) -> None:
        small = most // _SHARE
        #: Room of small bodies (True), and of others (False).
        self._rooms = {True: _room(small), False: _room(most - small)}

    @contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """Count a body of the current client until the end of the block.

        Returns:
            A function that adds bytes to the body; it raises `BusyError` if they exceed the limit.
        """
        size, room, client = 0, self._rooms[True], current()

        def grow(nbytes: int) -> None:
            nonlocal size, room
            room.take(-size, client)
            size, room = size + nbytes, self._rooms[size + nbytes <= _SMALL]
            has_room = room.has(size, client)
            room.take(size, client)
            if not has_room:
                raise BusyError(
                    f"The server has no memory for a body of {size:,} bytes beside those of other requests; expected "
                    "fewer or smaller requests at a time. Try again later."
                )

        try:
            yield grow
        finally:
            room.take(-size, client)


def _room(most: int) -> Shares:
    return Shares(most, most // 16)


class Waiting:
    """Counter of the requests of a queue; for the thread of the event loop.

    Args:
        most: Maximum number of waiting requests, besides a running one.
    """

    def __init__(self, most: int) -> None:
        self._most, self._places = most, Shares(most + 1, FEW)
        #: Number of ended requests.
        self.ended = 0

    @property
    def active(self) -> int:
        """Number of running or waiting requests."""
        return self._places.total

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request of the current client for its duration.

        Raises:
            BusyError: The queue is full, or has no more room for this client.
        """
        client = current()
        if not self._places.has(1, client):
            own = self._places.held[client.name]
            raise BusyError(
                f"{self.active:,} requests run or wait, {own:,} of them of this client; expected at most "
                f"{self._most:,}, with room for other clients. Try again later."
            )
        self._places.take(1, client)
        try:
            yield
        finally:
            self._places.take(-1, client)
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
