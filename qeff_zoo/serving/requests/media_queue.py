# SPDX-License-Identifier: Apache-2.0
"""Queue of requests with files: files are prepared in a pool for all clients, calls run in one thread."""

from typing import ClassVar, Generic, TypeVar

from qeff_zoo.serving.queues.media import MediaPool
from qeff_zoo.serving.queues.threads import Calls
from qeff_zoo.serving.queues.waiting import Waiting
from qeff_zoo.serving.requests.price import BOUNDS

_Session = TypeVar("_Session")


class MediaQueue(Generic[_Session]):
    """Base class of queues whose requests run in the order of arrival.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    #: Name of the thread that runs the session.
    thread: ClassVar[str]

    def __init__(self, session: _Session, *, max_waiting: int) -> None:
        self.session, self._requests = session, Waiting(max_waiting)
        self._calls = Calls(self.thread)
        #: Pool of threads that decode files.
        self.pool = MediaPool(BOUNDS.decoded_bytes)

    def close(self) -> None:
        """Finish the running call, and start no further ones. Not for the event loop's thread while the loop runs."""
        self._calls.close()
