# SPDX-License-Identifier: Apache-2.0
"""Answers that wait for slow readers, apart from the requests: those end, and their models may be unloaded.

A request has ended when its answer is written here. The answer is sent as fast as its client reads, or dropped if the
client reads too slowly, see `connection`. Memory of unread answers is shared among clients.
"""

import asyncio
from collections import deque

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff_zoo.serving.queues.accounts import Client, Shares, current

#: Bytes of unread answers of all clients, and of one client in any case.
MAX_UNREAD = 256 << 20
LEAST_UNREAD = 4 << 20
#: Seconds for a client to make room for the next part of an answer.
ROOM_SECONDS = 10.0
#: Key of a function in the scope of a request that ends its connection.
ABORT = "qeff_zoo.abort"
#: Key of a function in the scope of a request that returns whether its connection takes a part of an answer at once.
IS_WRITABLE = "qeff_zoo.is_writable"
_PIECE = 1 << 18  # bytes that are given to a connection at a time


class Outbox:
    """Middleware that holds the unread parts of answers.

    Args:
        app: App that answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._unread = Shares(MAX_UNREAD, LEAST_UNREAD)
        self._changed = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; return when its answer is sent."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer, is_writable = _Answer(current()), scope.get(IS_WRITABLE, lambda: False)

        async def put(message: Message) -> None:
            if not answer.messages and is_writable() and _size(message) <= _PIECE:
                await send(message)
                return
            answer.sending = answer.sending or asyncio.create_task(self._send(answer, send))
            await self._wait_for_room(answer, message, answer.sending)
            self._unread.take(_size(message), answer.client)
            answer.put(message)

        try:
            try:
                await self._run(scope, receive, put, answer)
            finally:
                if answer.sending:
                    await answer.sending  # also the response to an error
        finally:
            if answer.sending:
                answer.sending.cancel()
                self._unread.take(-sum(map(_size, answer.messages)), answer.client)
                answer.messages.clear()
                await self._wake()

    async def _run(self, scope: Scope, receive: Receive, put: Send, answer: "_Answer") -> None:
        """Run the app to the end of an answer, or of the connection of a slow reader."""
        try:
            await self._app(scope, receive, put)
        except (OSError, ClientDisconnect):
            if not answer.is_slow:
                raise
            scope.get(ABORT, lambda: None)()
        finally:
            answer.end()

    async def _wait_for_room(
        self, answer: "_Answer", message: Message, sending: asyncio.Task[None]
    ) -> None:
        """Wait until there is room for a part of an answer, or nothing of it is unread.

        Raises:
            OSError: The client has not read enough in time.
        """

        def has_room() -> bool:
            size = _size(message)
            is_next = not answer.messages and size <= _PIECE
            return is_next or sending.done() or self._unread.has(size, answer.client)

        if has_room():
            return
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(has_room), ROOM_SECONDS)
            except TimeoutError:
                answer.is_slow = True
                raise OSError("The client reads its answer too slowly.") from None

    async def _send(self, answer: "_Answer", send: Send) -> None:
        """Send the parts of an answer as they come."""
        while message := await answer.next():
            for piece in _split(message):
                await send(piece)
            answer.messages.popleft()
            self._unread.take(-_size(message), answer.client)
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Answer:
    """Unsent parts of an answer.

    Args:
        client: Client of the request.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        #: Whether the client reads too slowly.
        self.is_slow = False
        self.messages: deque[Message] = deque()
        #: Task that sends them; None until the connection has not taken a part at once.
        self.sending: asyncio.Task[None] | None = None
        self._has_ended, self._put = False, asyncio.Event()

    def put(self, message: Message) -> None:
        """Append a part."""
        self.messages.append(message)
        self._put.set()

    def end(self) -> None:
        """Mark the last part as the end."""
        self._has_ended = True
        self._put.set()

    async def next(self) -> Message | None:
        """Wait for the first part, which stays until it is sent; None after the last one."""
        while not (self.messages or self._has_ended):
            self._put.clear()
            await self._put.wait()
        return self.messages[0] if self.messages else None


def _size(message: Message) -> int:
    return len(message.get("body", b""))


def _split(message: Message) -> list[Message]:
    """Return a message as several, the next of which is sent when the client has read the last."""
    body = message.get("body", b"")
    if len(body) <= _PIECE:
        return [message]
    starts = range(0, len(body), _PIECE)
    more = message.get("more_body", False)
    return [
        {**message, "body": body[at : at + _PIECE], "more_body": more or at + _PIECE < len(body)}
        for at in starts
    ]
