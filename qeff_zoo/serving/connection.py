# SPDX-License-Identifier: Apache-2.0
"""Connections of clients, with limits of size and time for incomplete requests, and of time for unread responses."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Limit of a request's line and headers; a longer head is refused, at the latest at five times this size.
MAX_HEAD_BYTES = 16 << 10
_BODY_PIECE = 4 * MAX_HEAD_BYTES  # of a body, which may end in it and be followed by another head
#: Time limit for a complete request, its body included.
REQUEST_SECONDS = 60.0
#: Time limit for a client that reads nothing of its response. Shorter pauses, of any number, end no connection.
STALLED_SECONDS = 120.0
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"


class _HttpConnection(h11.Connection):
    """h11's state machine, without a transition for each chunk of a response: none changes its state."""

    _is_chunked = False

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """Return the bytes of an event."""
        chunk = event.data if isinstance(event, h11.Data) else b""
        if chunk and self._is_chunked and self.our_state is h11.SEND_BODY:
            return b"%x\r\n%b\r\n" % (len(chunk), chunk)
        output = super().send(event)
        if isinstance(event, h11.Response):
            self._is_chunked = _CHUNKED in (output or b"").lower()
        return output


class Connection(H11Protocol):
    """uvicorn's protocol class with limits; the original waits for incomplete requests without a timeout."""

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.conn = _HttpConnection(h11.SERVER, MAX_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._forget()
        self._resume()

    def data_received(self, data: bytes) -> None:
        """Receive data in pieces, since h11 checks the length of a head only while its end is missing."""
        start = 0
        while start < len(data) and not self.transport.is_closing():
            size = _BODY_PIECE if self.conn.their_state is h11.SEND_BODY else MAX_HEAD_BYTES
            super().data_received(data[start : start + size])
            start += size
        self._watch()

    def pause_writing(self) -> None:
        """Start the timeout of a client that does not read."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Stop the timeout, since the client reads."""
        super().resume_writing()
        self._resume()

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self._check_reader, unread)

    def _check_reader(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._await_reader()
        else:
            self.transport.abort()

    def _resume(self) -> None:
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None

    def _watch(self) -> None:
        """Start the timeout of an incomplete request, or stop it for a complete one."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._expire)

    def _forget(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        if not self.transport.is_closing():
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # nothing is answered yet
                self.transport.write(_TOO_SLOW)
            self.transport.close()
