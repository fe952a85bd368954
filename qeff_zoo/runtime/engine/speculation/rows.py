# SPDX-License-Identifier: Apache-2.0
"""Owners of the batch slots of a draft program: a new owner takes the least recently used slot."""

from weakref import ref


class Rows:
    """Batch slots of a program that any number of drafters share.

    Args:
        count: Number of slots.
    """

    def __init__(self, count: int) -> None:
        #: Last owner of each slot, least recently used first; weak references, so that a drafter's end frees its
        #: slot.
        self._users: dict[int, ref[object] | None] = dict.fromkeys(range(count))

    def of(self, user: object) -> tuple[int, bool]:
        """Return an owner's slot, and whether the owner still had it: if not, its contents are invalid."""
        users = {row: value and value() for row, value in self._users.items()}
        known = next((row for row, value in users.items() if value is user), None)
        free = (row for row, value in users.items() if value is None)
        row = next(free, next(iter(users))) if known is None else known
        del self._users[row]
        self._users[row] = ref(user)
        return row, row == known
