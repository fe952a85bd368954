# SPDX-License-Identifier: Apache-2.0
"""Which of several recordings is transcribed next, window by window."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

_T = TypeVar("_T")


class Turns(Protocol[_T]):
    """Chooses the recording whose next window is transcribed."""

    def take(self) -> _T | None:
        """Return a recording; None while there is none."""

    def put(self, recording: _T) -> None:
        """Accept a recording back, one of whose windows has been transcribed and which has more."""


class InOrder(Generic[_T]):
    """Finishes a recording before the next one is opened, as memory asks for.

    Args:
        recordings: All of them, opened one by one.
    """

    def __init__(self, recordings: Iterable[_T]) -> None:
        self._left, self._begun = enumerate(recordings), deque[_T]()
        self._numbers: dict[int, int] = {}

    def take(self) -> _T | None:
        """As of `Turns`."""
        if self._begun:
            return self._begun.popleft()
        number, recording = next(self._left, (0, None))
        if recording is not None:
            self._numbers[id(recording)] = number
        return recording

    def put(self, recording: _T) -> None:
        """As of `Turns`."""
        self._begun.append(recording)

    def number(self, recording: Any) -> int:
        """Return which one of all a recording is."""
        return self._numbers[id(recording)]
