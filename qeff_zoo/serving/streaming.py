# SPDX-License-Identifier: Apache-2.0
"""Answers that grow, as server-sent events; and what happens when their client disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from qeff_zoo.runtime import Handle
from qeff_zoo.serving.completion_choices import cancelling, grow
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.metrics import Metrics
from qeff_zoo.serving.objects import Object, Reply

_T = TypeVar("_T")


class EventStream(StreamingResponse):
    """The chunks of an answer; rows are freed when the client leaves, even if it does so before the first chunk.

    Args:
        events: As `events` makes them.
        handles: What they are made of.
    """

    def __init__(self, events: AsyncIterator[bytes], handles: Sequence[Handle]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy is to pass on
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._handles = handles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with cancelling(self._handles):
            await super().__call__(scope, receive, send)


async def events(
    reply: Reply, handles: Sequence[Handle], metrics: Metrics, *, n: int, include_usage: bool
) -> AsyncIterator[bytes]:
    """Yield every chunk as an event, and at the end `[DONE]`; or an error's object, and no more.

    Args:
        reply: Makes the chunks.
        handles: By prompt, and `n` for each.
        metrics: Of the server.
        n: Choices for each prompt.
        include_usage: End with a chunk that counts tokens; the others then have `"usage": null`.
    """
    usage = {"usage": None} if include_usage else {}
    try:
        for number in range(len(handles)):
            if opening := reply.opening(number):
                yield _event({**opening, **usage})
        async for number, delta in grow(handles, metrics):
            if chunk := reply.chunk(number, delta):
                yield _event({**chunk, **usage})
    except ApiError as error:
        yield _event(error.body)
        return
    if include_usage:
        yield _event(reply.closing([handle.result() for handle in handles], n))
    yield b"data: [DONE]\n\n"


def _event(content: Object) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T:
    """Do work for a client as long as it is there.

    Args:
        request: The client's; its body has been read.
        work: Cancelled when the client leaves.

    Raises:
        ApiError: It left, so that nobody reads this.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "The client has disconnected.")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
