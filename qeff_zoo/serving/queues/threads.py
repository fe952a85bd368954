# SPDX-License-Identifier: Apache-2.0
"""Calls in threads that a coroutine awaits to their end, even if it is cancelled."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from anyio import CancelScope

from qeff_zoo.serving.errors import shutting_down
from qeff_zoo.serving.queues.accounts import Turns

_T = TypeVar("_T")


class Calls:
    """Thread that makes the calls of a session one at a time, for clients in turn; for the thread of the event loop.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread, self._turns = ThreadPoolExecutor(1, name), Turns(1)

    async def run(self, work: Callable[[], _T]) -> _T:
        """Make a call.

        Raises:
            ApiError: The server shuts down.
        """
        async with self._turns.one():
            try:
                running = asyncio.get_running_loop().run_in_executor(self._thread, work)
            except RuntimeError as error:
                raise shutting_down() from error
            return await running

    def close(self) -> None:
        """Finish the running call, and start no further ones."""
        self._thread.shutdown(cancel_futures=True)


async def in_thread(
    pool: Executor, work: Callable[[], _T], stop: Callable[[], None] = lambda: None
) -> _T:
    """Call a function in a thread of a pool, after the calls before it.

    An exception refers to the frames through which it passes. Those that also refer to the exception would stay in
    memory, with the files of a request, until Python collects garbage.

    Args:
        pool: The threads.
        work: The function.
        stop: A function that makes a running call end soon, whose result is not needed any more.
    """
    called = pool.submit(work)
    del work
    try:
        await _end_of(called)
        return called.result()
    except asyncio.CancelledError:
        if not called.cancel():  # its memory is in use until it returns
            stop()
            with CancelScope(shield=True):  # from anyio, which repeats a cancellation
                await _end_of(called)
        raise
    finally:
        del called


def _end_of(called: Future[Any]) -> asyncio.Future[None]:
    """Return a future that is done after a call; `asyncio.wrap_future` and `shield` take more turns of the loop."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    def pass_on(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    called.add_done_callback(pass_on)
    return ended
