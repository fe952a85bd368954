# SPDX-License-Identifier: Apache-2.0
"""Connections of clients, with limits of size and time for incomplete requests, and of time for unread responses.

The parser of httptools has no limits of its own. Every byte that is not content of a body counts as *framing*: the
head of a request, the lengths of its chunks, their extensions, and trailers.
"""

import asyncio

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from qeff_zoo.serving.server.outbox import ABORT, IS_WRITABLE

#: Limit of a request's line and headers.
MAX_HEAD_BYTES = 16 << 10
#: Limit of the framing of a body, besides half of the body itself: chunks of one byte have five bytes of it each.
MAX_FRAMING_BYTES = 64 << 10
_PIECE = 4 * MAX_HEAD_BYTES  # of a body, which may end in it and be followed by another head
_MAX_PIPELINED = 16  # requests that wait for the response of the first one
#: Time limit for a complete request, its body included.
REQUEST_SECONDS = 60.0
#: Seconds in which a client must read a part of its unsent response, and bytes a second of that part.
STALLED_SECONDS = 30.0
READ_RATE = 4 << 10
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connection(HttpToolsProtocol):
    """uvicorn's protocol class with limits; the original waits for incomplete requests without a timeout."""

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    #: Whether a request is incomplete, and whether its head is.
    _receiving = _in_head = True
    #: Number of requests so far; bytes of the last one's framing, and of its body.
    _number = _framing = _content = 0
    #: The request whose response is being made.
    _answered: RequestResponseCycle | None = None

    # --- requests --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and end every request; the original ends the last one of several."""
        super().connection_lost(exc)
        self._forget()
        self._resume()
        cycles = [cycle for cycle, _ in self.pipeline]
        for cycle in [*cycles, self._answered] if self._answered else cycles:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Receive data in pieces, so that a request beyond a limit is refused before all of it is parsed."""
        self._unset_keepalive_if_required()
        start = 0
        while start < len(data) and not self.transport.is_closing():
            size = max(1, MAX_HEAD_BYTES - self._framing) if self._in_head else _PIECE
            piece = data[start : start + size]
            start += len(piece)
            try:
                self._parse(piece)
            except httptools.HttpParserError as error:
                self._refuse(str(error.__context__ or error))
        if self.parser is not None:
            self._watch()

    def _parse(self, piece: bytes) -> None:
        """Parse a piece of a request within the limits of its framing.

        Raises:
            HttpParserError: The piece is invalid, or exceeds a limit.
        """
        number, before = self._number, self._content
        is_whole = not number or not self._receiving
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser takes what follows for another protocol. No server has to change to it.
            head = self._head()
            self.parser = httptools.HttpRequestParser(self)
            self._parse(head + piece[upgrade.args[0] :])
        if self._number == number:
            self._framing += len(piece) - (self._content - before)
        elif self._number == number + 1 and is_whole:
            self._framing = len(piece) - self._content
        # Otherwise an unknown part of the piece belongs to the requests before; the next piece counts.
        if self._in_head and self._framing >= MAX_HEAD_BYTES:
            raise httptools.HttpParserError(f"its head exceeds {MAX_HEAD_BYTES:,} bytes")
        if self._framing > MAX_HEAD_BYTES + MAX_FRAMING_BYTES + self._content // 2:
            raise httptools.HttpParserError("the chunks of its body are too small")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._receiving = self._in_head = True
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
        self.scope[IS_WRITABLE] = self._is_writable  # type: ignore[literal-required]
        self._framing = self._content = 0
        self._number += 1

    def on_headers_complete(self) -> None:
        """Begin to respond to a request; one that offers another protocol is begun again by `_parse`.

        Raises:
            HttpParserError: The request is refused.
        """
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("the method CONNECT is for proxies")
            return
        named = sum(name == b"host" for name, _ in self.headers)
        if named > 1 or (not named and self.parser.get_http_version() == "1.1"):
            raise httptools.HttpParserError("it has no header Host, or several")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise httptools.HttpParserError("too many others wait on its connection")
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body."""
        self._content += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self._in_head:  # otherwise it begins again, without its header Upgrade
            self._receiving = False
            super().on_message_complete()

    def _head(self) -> bytes:
        """Return the request's head without the header Upgrade."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, reason: str) -> None:
        """Refuse a request and close the connection; a response that has begun is cut instead."""
        active = self._answered is not None and not self._answered.response_complete
        if active or self.pipeline:
            self.transport.close()
        else:
            plain = reason.encode("ascii", "replace").decode()
            self.send_400_response(f"The request is not valid HTTP: {plain}. Correct it.")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._answered = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def _watch(self) -> None:
        """Start the timeout of an incomplete request, or stop it for a complete one."""
        if not self._receiving:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._expire)

    def _forget(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        if not self.transport.is_closing():
            if (
                self._answered is None
                or self._answered.response_complete
                or not self._answered.response_started
            ):
                self.transport.write(_TOO_SLOW)
            self.transport.close()

    # --- responses -------------------------------------------------------------------------------

    def _is_writable(self) -> bool:
        return not self.flow.write_paused

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
        if self.transport.get_write_buffer_size() <= unread - STALLED_SECONDS * READ_RATE:
            self._await_reader()
        else:
            self.transport.abort()

    def _resume(self) -> None:
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None
