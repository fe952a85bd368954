# SPDX-License-Identifier: Apache-2.0
"""Whose tokens the rows of a drafting program have: who finds no row takes the one that was used longest ago."""

from weakref import ref


class Rows:
    """Rows of a program that any number of drafters share.

    Args:
        count: Number of rows.
    """

    def __init__(self, count: int) -> None:
        #: By row, whoever used it, those longest ago first; nobody is kept here, so that a drafter's end frees its row.
        self._users: dict[int, ref[object] | None] = dict.fromkeys(range(count))

    def of(self, user: object) -> tuple[int, bool]:
        """Return a user's row, and whether it is still the user's: if not, nothing in it is of use."""
        users = {row: one and one() for row, one in self._users.items()}
        known = next((row for row, one in users.items() if one is user), None)
        free = (row for row, one in users.items() if one is None)
        row = next(free, next(iter(users))) if known is None else known
        del self._users[row]
        self._users[row] = ref(user)
        return row, row == known
