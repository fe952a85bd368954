# SPDX-License-Identifier: Apache-2.0
"""Admission to a prefill server: one thread holds a few connections for a short time until they send the key.

A connection begins with a short message, the greeting, with the handover version and the key. A connection without
the key receives a refusal, and no information about the model.
"""

import hmac
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.errors import HandoffError
from qeff_zoo.runtime.engine import wire

#: Maximum number of connections without the key; the oldest is closed for a new one.
MOST_WAITING = 64
#: Timeout in seconds for a greeting, and for a client to read a refusal.
PATIENCE = 5.0
_MOST_GREETING = 4096  # bytes


def greeting(key: str | None) -> dict[str, Any]:
    """Return the first message of a connection.

    Args:
        key: Key of the server; None for no key.
    """
    return {"version": wire.VERSION, "key": key}


@dataclass(eq=False)
class _Visitor:
    """Connection that is not admitted yet, or was refused.

    Args:
        connection: A non-blocking socket.
        until: Deadline, by `time.monotonic`.
        received: Bytes of its greeting so far.
        refused: Whether its input is discarded.
    """

    connection: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)
    refused: bool = False

    def greeting(self) -> dict[str, Any] | None:
        """Read no further than the greeting; return the greeting once it is complete.

        Raises:
            EOFError: If the client has closed the connection.
            HandoffError: If the message is not a greeting.
            OSError: If the connection is broken.
        """
        size = wire.LENGTH
        while len(self.received) < size:
            piece = self.connection.recv(size - len(self.received))
            if not piece:
                raise EOFError
            self.received += piece
            if len(self.received) >= wire.LENGTH:
                size = wire.LENGTH + wire.size_of(
                    bytes(self.received[: wire.LENGTH]), _MOST_GREETING
                )
        return wire.parsed(bytes(self.received[wire.LENGTH :]))


class Door:
    """Listener that admits connections with the key.

    Args:
        listener: A listening socket.
        key: Key of the server; None for no key.
    """

    def __init__(self, listener: socket.socket, key: str | None) -> None:
        self._listener, self._key = listener, key
        self._visitors: dict[socket.socket, _Visitor] = {}
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Close all pending connections."""
        for connection in [*self._visitors]:
            self._leave(connection)
        self._selector.close()

    def admitted(self, seconds: float) -> Iterator[socket.socket]:
        """Yield connections that have sent the key, for about this many seconds."""
        for chosen, _ in self._selector.select(seconds):
            if chosen.fileobj is self._listener:
                self._take()
                continue
            visitor = self._visitors.get(chosen.fileobj)  # type: ignore[call-overload]
            if visitor and (client := self._attend(visitor)):
                yield client
        now = time.monotonic()
        for visitor in [value for value in self._visitors.values() if value.until < now]:
            self._leave(visitor.connection)

    def refuse(self, connection: socket.socket, error: HandoffError) -> None:
        """Send an error, and keep the connection until the client has read it: closing at once would lose it."""
        visitor = self._visitors.get(connection) or self._wait_for(connection)
        visitor.refused, visitor.until = True, time.monotonic() + PATIENCE
        with suppress(OSError):
            connection.send(wire.packed({"version": wire.VERSION, "error": str(error)}))
            connection.shutdown(socket.SHUT_WR)

    def _take(self) -> None:
        with suppress(OSError):  # the client left before `accept`
            connection, _ = self._listener.accept()
            if len(self._visitors) >= MOST_WAITING:
                self._leave(next(iter(self._visitors)))
            self._wait_for(connection)

    def _wait_for(self, connection: socket.socket) -> _Visitor:
        connection.setblocking(False)
        visitor = _Visitor(connection, time.monotonic() + PATIENCE)
        self._visitors[connection] = visitor
        self._selector.register(connection, selectors.EVENT_READ)
        return visitor

    def _attend(self, visitor: _Visitor) -> socket.socket | None:
        """Read the available input of a pending connection; return the connection if it is admitted."""
        connection = visitor.connection
        try:
            if visitor.refused:
                if not connection.recv(1 << 16):
                    self._leave(connection)
                return None
            self._check(visitor.greeting() or {})
        except BlockingIOError:
            return None
        except HandoffError as error:
            self.refuse(connection, error)
            return None
        except (EOFError, OSError):
            self._leave(connection)
            return None
        self._forget(connection)
        return connection

    def _check(self, message: dict[str, Any]) -> None:
        wire.require_version(message, "The client")
        key = message.get("key")
        shown = key.encode(errors="surrogatepass") if isinstance(key, str) else b""
        if self._key is not None and not hmac.compare_digest(shown, self._key.encode()):
            raise HandoffError(
                "The client has another API key; expected that of the prefill server. Give both the same --api-key."
            )

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._visitors[connection]
        connection.setblocking(True)

    def _leave(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()
