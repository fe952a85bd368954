# SPDX-License-Identifier: Apache-2.0
"""Clients of a server, by key or else by address, and the share that each may take of the server's room.

A client alone may take three fourths of any room, so that there is always some left for another one: each may have
three times as much as is free. With two clients that take all they can, each has three sevenths.
"""

import asyncio
import hashlib
import ipaddress
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

_LOCAL = "local"  # clients of a Unix socket
#: Each client may have this many times as much of a room as is free.
_TIMES_FREE = 3


@dataclass(frozen=True)
class Client:
    """Client of a server.

    Args:
        name: Digest of the client's key, or its address on a server without keys.
        tenant: Digest of its key; empty on a server without keys, whose clients share everything.
    """

    name: str = ""
    tenant: bytes = b""

    @classmethod
    def of_key(cls, key: bytes) -> "Client":
        """Return the client with a key."""
        digest = hashlib.blake2b(key, digest_size=16, person=b"qeff-zoo client").digest()
        return cls(digest.hex(), digest)

    @classmethod
    def of_address(cls, address: str) -> "Client":
        """Return the client at an address; one of IPv6 has a network of 64 bits."""
        try:
            known = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return cls(address or _LOCAL)
        if known.version == 6 and known.ipv4_mapped is None:
            return cls(str(ipaddress.ip_network((int(known), 64), strict=False)))
        return cls(str(known))


_CURRENT: ContextVar[Client] = ContextVar("client")


def current() -> Client:
    """Return the client of the request that this task answers."""
    return _CURRENT.get(Client())


def enter(client: Client) -> None:
    """Set the client of the request that this task answers, also for the tasks and threads that it starts."""
    _CURRENT.set(client)


class Addresses:
    """Middleware that sets the client of each request by its address.

    Args:
        app: The guarded app.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            address, *_ = scope.get("client") or ("",)
            enter(Client.of_address(address))
        await self._app(scope, receive, send)


@dataclass
class Shares:
    """What clients hold of a limited room; for the thread of the event loop.

    Args:
        most: Size of the room.
        least: Size that no client is refused for the sake of others.
    """

    most: int
    least: int
    held: Counter[str] = field(default_factory=Counter, init=False)
    total: int = field(default=0, init=False)

    def has(self, amount: int, client: Client) -> bool:
        """Return whether a client may take more of the room."""
        free = self.most - self.total - amount
        own = self.held[client.name] + amount
        return free >= 0 and own <= max(self.least, _TIMES_FREE * free)

    def take(self, amount: int, client: Client) -> None:
        """Take room for a client, or give it back if the amount is negative."""
        self.total += amount
        self.held[client.name] += amount
        if not self.held[client.name]:
            del self.held[client.name]


class Turns:
    """Turns of clients, each of whom has a few at a time; for the thread of the event loop.

    Args:
        most: Maximum number of turns of a client at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a turn of the current client, which lasts until the end of the block."""
        name = current().name
        gate = self._gates.setdefault(name, asyncio.Semaphore(self._most))
        self._users[name] += 1
        try:
            async with gate:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._gates[name]


class Budgets:
    """CPU time with priority, which each client has again after some time; for the thread of the event loop.

    Args:
        most: CPU seconds of a client that has used none.
        rate: CPU seconds that a client gets back each second.
    """

    def __init__(self, most: float, rate: float) -> None:
        self._most, self._rate = most, rate
        self._full_at: dict[str, float] = {}  # when a client that used some has all of it again

    def is_left(self, client: Client) -> bool:
        """Return whether a client has priority."""
        return self._used(client) < self._most

    def spend(self, client: Client, seconds: float) -> None:
        """Take CPU seconds from a client, who may owe some of them."""
        now = time.monotonic()
        self._full_at[client.name] = now + (self._used(client) + seconds) / self._rate
        self._full_at = {name: full_at for name, full_at in self._full_at.items() if full_at > now}

    def _used(self, client: Client) -> float:
        return max(0.0, self._full_at.get(client.name, 0.0) - time.monotonic()) * self._rate
