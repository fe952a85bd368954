# SPDX-License-Identifier: Apache-2.0
"""Memory of clients' values by id: the most recently used ones, within one bound for all clients."""

import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from qeff_zoo.serving.accounts import Client, current

#: Bytes of all values, and of one of them.
MAX_KEPT = 64 << 20
MAX_VALUE = 8 << 20

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Entry:
    value: object
    nbytes: int
    client: Client


class ClientMemory:
    """Most recently used values by id, for the thread of the event loop.

    Each belongs to the key of its request, and does not exist for other keys. Clients share the memory: the oldest
    values of the client with most make room.
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
            nbytes: Its size.
        """
        if name in self._entries:
            self.drop(name)
        self._entries[name] = _Entry(value, nbytes, current())
        self._held[current().name] += nbytes
        while self.nbytes > MAX_KEPT:
            ((largest, _),) = self._held.most_common(1)
            self.drop(next(id for id, one in self._entries.items() if one.client.name == largest))

    def find(self, name: str, kind: type[_T]) -> _T | None:
        """Return a value of the current client's key; None if there is none of this id and type."""
        entry = self._entries.get(name)
        if entry is None or entry.client.tenant != current().tenant:
            return None
        if not isinstance(entry.value, kind):
            return None
        self._entries.move_to_end(name)
        return entry.value

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
