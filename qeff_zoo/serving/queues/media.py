# SPDX-License-Identifier: Apache-2.0
"""Threads that decode and fetch files for all clients, with a fair order of steps and a memory limit.

A request waits for one step at a time, so that clients take turns regardless of the size of their requests. The
remaining steps of a request are dropped if its client disconnects.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from qeff_zoo.errors import ZooError
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.runtime.engine.priority import lower_priority
from qeff_zoo.runtime.memory import return_freed
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.queues.accounts import Client, Shares, current
from qeff_zoo.serving.queues.threads import in_thread
from qeff_zoo.serving.queues.workers import shared

_T = TypeVar("_T")
_FETCHES = 16  # at a time; they wait for other servers
#: Sizes of steps in bytes, and the fraction of the memory that steps up to each have: they wait for no larger ones. A
#: recording of half a minute, one window of most models, is in the first; one of five minutes in the second.
_SIZES = ((1 << 22, 1 / 16), (1 << 25, 1 / 8))


@dataclass(frozen=True)
class Step:
    """One step of a request's preparation; other clients' steps may run before it.

    Args:
        work: A function, or a generator that yields where other clients' steps may run.
        nbytes: Required memory in bytes.
        fetches: Whether it waits for another server, without use of a CPU.
        apart: Seconds of CPU time of a worker, a process that can be stopped; 0 for a thread. See `workers`.
    """

    work: Callable[[], Any] | Steps[Any]
    nbytes: int = 0
    fetches: bool = False
    apart: int = 0


#: Preparation of a request: a generator that receives the result of each of its steps, and returns the prepared value.
Preparation: TypeAlias = Generator[Step, Any, _T]


def at_once(preparation: Preparation[_T]) -> _T:
    """Prepare a request without other clients."""
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
    """Return the next step, or the prepared value.

    Args:
        preparation: Preparation of a request.
        given: Result or exception of the previous step.
    """
    try:
        if isinstance(given, Exception):
            return preparation.throw(given), None
        return preparation.send(given), None
    except StopIteration as end:
        return None, end.value
    finally:
        del given  # see `in_thread`


class MediaPool:
    """Pool that runs the steps of requests, with clients in turn; for the thread of the event loop.

    Args:
        most: Maximum memory of all steps and recordings, in bytes.
    """

    def __init__(self, most: int) -> None:
        self._fetching = ThreadPoolExecutor(_FETCHES, "qeff-zoo fetches")
        # As many threads as asyncio's default would slow down the event loop and the model, which share Python's GIL.
        preparing = max(2, (os.cpu_count() or 1) // 2)
        self._preparing = ThreadPoolExecutor(preparing, "qeff-zoo prepares")
        shares = [int(most * share) for _, share in _SIZES]
        self._lanes = [_Lane(share) for share in shares]
        self._large = _Lane(most - sum(shares), lower_priority)

    async def prepare(self, preparation: Preparation[_T]) -> _T:
        """Prepare a request. Cancellation ends it before its next step."""
        given: Any = None
        try:
            while True:
                step, made = await in_thread(self._preparing, partial(_advance, preparation, given))
                if step is None:
                    prepared: _T = made
                    return prepared
                try:
                    given = await self._do(step)
                except (ZooError, ApiError) as error:
                    given = error
        finally:
            del given  # see `in_thread`

    async def _do(self, step: Step) -> Any:
        if step.fetches:
            return await self._run(self._fetching, step.work)
        if step.apart:
            assert callable(step.work)
            async with self.room(step.nbytes):
                return await shared().run(step.work, step.apart)
        async with self.room(step.nbytes):
            return await self.run(step.work, step.nbytes)

    async def run(self, work: Callable[[], Any] | Steps[Any], nbytes: int = 0) -> Any:
        """Run a step as soon as its memory is available.

        Args:
            work: Work of a step, see `Step`.
            nbytes: Required memory in bytes.
        """
        return await self._run(self._lane(nbytes).threads, work)

    async def _run(self, pool: Executor, work: Callable[[], Any] | Steps[Any]) -> Any:
        if callable(work):
            return await in_thread(pool, work)
        while True:
            ended, result = await in_thread(pool, partial(_next, work))
            if ended:
                return result

    @asynccontextmanager
    async def room(self, nbytes: int) -> AsyncIterator[Callable[[int], None]]:
        """Wait for memory, and release it at the end of the block.

        Args:
            nbytes: Required memory in bytes.

        Returns:
            A function that releases all but the given number of bytes before the end of the block.
        """
        lane, client = self._lane(nbytes), current()
        held = await lane.take(nbytes, client)

        def keep(fewer: int) -> None:
            nonlocal held
            lane.give(max(0, held - fewer), client)
            held = min(held, fewer)
            if lane is self._large:
                lane.threads.submit(return_freed)

        try:
            yield keep
        finally:
            keep(0)

    def _lane(self, nbytes: int) -> "_Lane":
        fitting = (
            lane for (most, _), lane in zip(_SIZES, self._lanes, strict=True) if nbytes <= most
        )
        return next(fitting, self._large)


class _Lane:
    """Threads with a memory limit, which is granted to clients in turn; for the thread of the event loop."""

    def __init__(self, most: int, begin: Callable[[], None] = lambda: None) -> None:
        # Most CPUs remain available to the model.
        count = max(1, (os.cpu_count() or 1) // 4)
        self.threads = ThreadPoolExecutor(count, "qeff-zoo media", begin)
        self._room = Shares(most, 0)
        self._waiting: list[_Wanted] = []

    async def take(self, nbytes: int, client: Client) -> int:
        """Wait for memory, at most the limit; return the granted number of bytes."""
        nbytes = min(nbytes, self._room.most)
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(_Wanted(nbytes, client, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            self.give(0 if granted.cancelled() else nbytes, client)
            raise
        return nbytes

    def give(self, nbytes: int, client: Client) -> None:
        """Release memory of a client."""
        self._room.take(-nbytes, client)
        self._grant()

    def _grant(self) -> None:
        """Grant memory, first to the clients that hold the least.

        No client passes one that waits for the memory of others.
        """
        self._waiting = [one for one in self._waiting if not one.granted.done()]
        while wanted := self._next():
            self._waiting.remove(wanted)
            self._room.take(wanted.nbytes, wanted.client)
            wanted.granted.set_result(None)

    def _next(self) -> "_Wanted | None":
        room = self._room
        for one in sorted(self._waiting, key=lambda one: room.held.get(one.client.name, 0)):
            if not room.total or room.has(one.nbytes, one.client):
                return one
            if room.total + one.nbytes > room.most:
                return None
        return None


@dataclass(eq=False)
class _Wanted:
    """Memory that a client waits for.

    Args:
        nbytes: Number of bytes.
        client: The client.
        granted: Future that is done when the client has it, or has left.
    """

    nbytes: int
    client: Client
    granted: asyncio.Future[None]


def _next(work: Steps[Any]) -> tuple[bool, Any]:
    """Run the next step of a generator; return whether it was the last, and the result."""
    try:
        next(work)
    except StopIteration as end:
        return True, end.value
    return False, None
