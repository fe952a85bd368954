# SPDX-License-Identifier: Apache-2.0
"""Order of recordings in a transcription, window by window."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

_T = TypeVar("_T")


class Turns(Protocol[_T]):
    """Queue that selects the recording of the next window."""

    def take(self) -> _T | None:
        """Return a recording; None if there is none."""

    def put(self, recording: _T) -> None:
        """Return a recording to the queue after the transcription of one of its windows, if it has more."""


class InOrder(Generic[_T]):
    """Queue that finishes a recording before it opens the next one, to limit memory.

    Args:
        recordings: All recordings, opened one by one.
    """

    def __init__(self, recordings: Iterable[_T]) -> None:
        self._left, self._begun = enumerate(recordings), deque[_T]()
        self._numbers: dict[int, int] = {}

    def take(self) -> _T | None:
        """See `Turns`."""
        if self._begun:
            return self._begun.popleft()
        number, recording = next(self._left, (0, None))
        if recording is not None:
            self._numbers[id(recording)] = number
        return recording

    def put(self, recording: _T) -> None:
        """See `Turns`."""
        self._begun.append(recording)

    def number(self, recording: Any) -> int:
        """Return the number of a recording."""
        return self._numbers[id(recording)]
