# SPDX-License-Identifier: Apache-2.0
"""Streams of server-sent events, with cancellation if the client disconnects."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from qeff_zoo.runtime import Handle
from qeff_zoo.serving.answers.chats import Chat, chat_events
from qeff_zoo.serving.answers.completion_choices import cancelling
from qeff_zoo.serving.answers.objects import Object, Reply, usage_of
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.monitoring.metrics import Metrics

_T = TypeVar("_T")
#: Headers of a stream, which no proxy buffers.
UNBUFFERED: Mapping[str, str] = MappingProxyType(
    {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
)


class EventStream(StreamingResponse):
    """Response with the chunks of a stream; batch slots are freed if the client disconnects, even before the start.

    Args:
        events: Events from `events`.
        handles: Handles of the running requests.
        media_type: Media type of the events.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        handles: Sequence[Handle],
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(events, headers=UNBUFFERED, media_type=media_type)
        self._handles = handles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        with cancelling(self._handles):
            await super().__call__(scope, receive, send)


class Recording:
    """Events of a stream that runs without its client, for clients that read them meanwhile or afterwards."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._changed = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def nbytes(self) -> int:
        """Size of the events."""
        return sum(map(sys.getsizeof, self._events))

    def add(self, event: bytes) -> None:
        """Append an event."""
        self._events.append(event)
        self._wake()

    def end(self) -> None:
        """End the stream."""
        self.ended.set()
        self._wake()

    async def read(self, begin: int = 0) -> AsyncIterator[bytes]:
        """Yield the events from an index on, until the end of the stream."""
        while True:
            changed = self._changed
            for event in self._events[begin:]:
                begin += 1
                yield event
            if begin >= len(self._events):
                if self.ended.is_set():
                    return
                await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def events(
    reply: Reply,
    chat: Chat,
    handles: Sequence[Handle],
    metrics: Metrics,
    *,
    n: int,
    include_usage: bool,
    continuous: bool = False,
) -> AsyncIterator[bytes]:
    """Yield every chunk as an event, and finally `[DONE]`; or an error object as the last event.

    Args:
        reply: Factory of the chunks.
        chat: The prepared chat.
        handles: Handles: `n` for each prompt.
        metrics: Metrics of the server.
        n: Number of choices per prompt.
        include_usage: Whether to end with a chunk of the usage; the others then have `"usage": null`.
        continuous: Whether each chunk has the usage so far.
    """
    prompt_tokens = sum(handle.request.prompt_tokens for handle in handles[::n])
    generated = 0
    usage: Object = {}
    if include_usage:
        usage = {"usage": usage_of(prompt_tokens, 0) if continuous else None}
    try:
        for number in range(len(handles)):
            if opening := reply.opening(number, n):
                yield _event({**opening, **usage})
        async for number, delta, found in chat_events(chat, handles, metrics):
            generated += len(delta.token_ids)
            if include_usage and continuous:
                usage = {"usage": usage_of(prompt_tokens, generated)}
            if chunk := reply.chunk(number, delta, found):
                yield _event({**chunk, **usage})
    except ApiError as error:
        yield _event(error.body)
        return
    if include_usage:
        yield _event(reply.closing(chat, [handle.result() for handle in handles], n))
    yield b"data: [DONE]\n\n"


def server_sent(content: Object, name: str) -> bytes:
    """Return a named server-sent event."""
    return f"event: {name}\n".encode() + _event(content)


def _event(content: Object) -> bytes:
    return b"data: %b\n\n" % to_json(content)


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T:
    """Await work while the client is connected.

    Args:
        request: Request of the client, whose body has been read.
        work: Awaitable that is cancelled if the client disconnects.

    Raises:
        ApiError: The client disconnected, so that the error reaches no reader.
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
        del task  # with its exception, which refers to this frame


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
