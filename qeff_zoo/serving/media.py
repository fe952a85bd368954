# SPDX-License-Identifier: Apache-2.0
"""Threads that decode and fetch for all clients: each request does one step in its turn, and memory has a bound.

A request waits for one step at a time, so that clients take turns however much one of them sends. What is left of a
request whose client disconnects is never begun.
"""

import asyncio
import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from qeff_zoo.errors import ZooError
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.serving.errors import ApiError

_T = TypeVar("_T")
_NICENESS = 10  # of threads whose work is large: a tenth of a CPU's time where others want it
_FETCHES = 16  # at a time; they wait for other servers
_SMALL = 1 << 25  # bytes; what takes no more does not wait for what takes more
_SHARE = 8  # the memory of small work is this part of all


@dataclass(frozen=True)
class Step:
    """A part of a request's preparation, before which other clients may have a turn.

    Args:
        work: A function; or a generator that pauses where other clients may have one.
        nbytes: Memory that it takes.
        fetches: Whether it waits for another server, and takes no time of a CPU.
    """

    work: Callable[[], Any] | Steps[Any]
    nbytes: int = 0
    fetches: bool = False


#: How a request is prepared: is given the result of each of its steps, and returns its own.
Preparation: TypeAlias = Generator[Step, Any, _T]


def at_once(preparation: Preparation[_T]) -> _T:
    """Prepare a request where there are no other clients."""
    given: Any = None
    while True:
        step, made = _advance(preparation, given)
        if step is None:
            prepared: _T = made
            return prepared
        try:
            given = step.work() if callable(step.work) else finished(step.work)
        except (ZooError, ApiError) as error:
            given = error


def _advance(preparation: Preparation[_T], given: Any) -> tuple[Step | None, Any]:
    """Return the next step, or what was prepared.

    Args:
        preparation: Of a request.
        given: Result of the step before, or what it raised.
    """
    try:
        if isinstance(given, Exception):
            return preparation.throw(given), None
        return preparation.send(given), None
    except StopIteration as end:
        return None, end.value


class MediaPool:
    """Does the steps of requests, each client's in its turn; for the thread of the event loop.

    Args:
        most: Bytes that all steps and recordings may take together.
    """

    def __init__(self, most: int) -> None:
        self._fetching = ThreadPoolExecutor(_FETCHES, "qeff-zoo fetches")
        # As many threads as asyncio has by default would keep the event loop and the model from Python.
        preparing = max(2, (os.cpu_count() or 1) // 2)
        self._preparing = ThreadPoolExecutor(preparing, "qeff-zoo prepares")
        self._small, self._large = _Lane(most // _SHARE), _Lane(most - most // _SHARE, _stand_back)

    async def prepare(self, preparation: Preparation[_T]) -> _T:
        """Prepare a request. To cancel this ends it before its next step."""
        given: Any = None
        while True:
            step, made = await _turn(self._preparing, partial(_advance, preparation, given))
            if step is None:
                prepared: _T = made
                return prepared
            try:
                given = await self._do(step)
            except (ZooError, ApiError) as error:
                given = error

    async def _do(self, step: Step) -> Any:
        if step.fetches:
            return await self._run(self._fetching, step.work)
        async with self.room(step.nbytes):
            return await self.run(step.work, step.nbytes)

    async def run(self, work: Callable[[], Any] | Steps[Any], nbytes: int = 0) -> Any:
        """Do a step for which there is room.

        Args:
            work: As of `Step`.
            nbytes: Memory that it takes.
        """
        return await self._run(self._lane(nbytes).threads, work)

    async def _run(self, pool: Executor, work: Callable[[], Any] | Steps[Any]) -> Any:
        if callable(work):
            return await _turn(pool, work)
        while True:
            ended, result = await _turn(pool, partial(_next, work))
            if ended:
                return result

    @asynccontextmanager
    async def room(self, nbytes: int) -> AsyncIterator[Callable[[int], None]]:
        """Wait for memory, and give it back at the end of the block.

        Args:
            nbytes: How much.

        Returns:
            A function that gives back all but so many bytes before the end.
        """
        lane = self._lane(nbytes)
        held = await lane.take(nbytes)

        def keep(fewer: int) -> None:
            nonlocal held
            lane.give(max(0, held - fewer))
            held = min(held, fewer)
            if lane is self._large:
                lane.threads.submit(_return_memory)

        try:
            yield keep
        finally:
            keep(0)

    def _lane(self, nbytes: int) -> "_Lane":
        return self._small if nbytes <= _SMALL else self._large


class _Lane:
    """Threads, and a number of bytes that is given in the order of requests; for the thread of the event loop."""

    def __init__(self, most: int, begin: Callable[[], None] = lambda: None) -> None:
        # Most CPUs are left to the model.
        count = max(1, (os.cpu_count() or 1) // 4)
        self.threads = ThreadPoolExecutor(count, "qeff-zoo media", begin)
        self._most = self._free = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, nbytes: int) -> int:
        """Wait for bytes, at most all that there are; return how many it became."""
        nbytes = min(nbytes, self._most)
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, granted))
        self.give(0)
        try:
            await granted
        except asyncio.CancelledError:
            self.give(0 if granted.cancelled() else nbytes)
            raise
        return nbytes

    def give(self, nbytes: int) -> None:
        """Take bytes back."""
        self._free += nbytes
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            wanted, granted = self._waiting.popleft()
            if not granted.done():
                self._free -= wanted
                granted.set_result(None)


async def _turn(pool: Executor, work: Callable[[], _T]) -> _T:
    """Call a function in a thread of a pool, when those before it have been called."""
    called = pool.submit(work)
    ended = asyncio.wrap_future(called)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        if not called.cancel():  # what it takes is in use until it returns
            await asyncio.wait([ended])
        raise


def _next(work: Steps[Any]) -> tuple[bool, Any]:
    """Do the next step of a generator; return whether it was the last, and the result."""
    try:
        next(work)
    except StopIteration as end:
        return True, end.value
    return False, None


def _stand_back() -> None:
    """Let other threads have CPUs first, where the system has priorities of threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _return_memory() -> None:
    """Give free memory back to the system, which glibc keeps in pieces."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
