# SPDX-License-Identifier: Apache-2.0
"""Memory of clients' values by id: the most recently used ones, within one bound for all clients, and for 30 days."""

import sys
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import TypeVar

from qeff_zoo.serving.queues.accounts import Client, current

#: Bytes of all values, and of one of them.
MAX_KEPT = 64 << 20
MAX_VALUE = 8 << 20
#: Seconds since the last use of a value until it is dropped, as OpenAI keeps responses.
MAX_AGE = 30 * 24 * 3600.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Entry:
    value: object
    nbytes: int
    client: Client
    used: float


class ClientMemory:
    """Most recently used values by id, for the thread of the event loop.

    Each belongs to the key of its request, and does not exist for other keys. Clients share the memory: the oldest
    values of the client with most make room. A value that is not used for `MAX_AGE` is dropped.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._held: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Size of all values."""
        return self._held.total()

    def put(self, name: str, value: object, nbytes: int) -> None:
        """Keep a value of the current client, in place of the one of this id; older values make room.

        Args:
            name: Id of the value.
            value: The value.
            nbytes: Size.
        """
        self._expire()
        if name in self._entries:
            self.drop(name)
        self._entries[name] = _Entry(value, nbytes, current(), time.monotonic())
        self._held[current().name] += nbytes
        while self.nbytes > MAX_KEPT:
            ((largest, _),) = self._held.most_common(1)
            self.drop(next(id for id, one in self._entries.items() if one.client.name == largest))

    def find(self, name: str, kind: type[_T]) -> _T | None:
        """Return a value of the current client's key; None if there is none of this id and type."""
        self._expire()
        entry = self._entries.get(name)
        if entry is None or entry.client.tenant != current().tenant:
            return None
        if not isinstance(entry.value, kind):
            return None
        self._entries[name] = replace(entry, used=time.monotonic())
        self._entries.move_to_end(name)
        return entry.value

    def _expire(self) -> None:
        """Drop the values that were not used for too long; the least recently used one is the first."""
        oldest = time.monotonic() - MAX_AGE
        while self._entries and next(iter(self._entries.values())).used < oldest:
            self.drop(next(iter(self._entries)))

    def drop(self, name: str) -> None:
        """Forget a value."""
        entry = self._entries.pop(name)
        self._held[entry.client.name] -= entry.nbytes


def size_of(content: object) -> int:
    """Return the memory of JSON values, in a time that does not depend on the lengths of their texts."""
    total, left = 0, [content]
    while left:
        one = left.pop()
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one
    return total
