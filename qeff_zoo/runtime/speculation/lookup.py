# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup: what followed the newest tokens when they came before, in the prompt or in the answer.

Texts that repeat (code that is edited, records that are rewritten, quotations) are drafted well, others hardly ever; so
how many tokens are drafted follows from what came of earlier drafts of this request, for each length of match.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq

from qeff_zoo.runtime.speculation.costs import Costs

#: Chance that the next token is as after a match of so many tokens, until a request has shown its own.
_CHANCES = {2: 0.3, 3: 0.45, 4: 0.6, 5: 0.7, 6: 0.75, 7: 0.8, 8: 0.8, 16: 0.9}
_BELIEF = 4.0  # tokens that such a chance counts for
_MEMORY = 24.0  # tokens after which those of before count less
_FADING = 0.75
_LEAST, _LONGEST = min(_CHANCES), max(_CHANCES)
_PLACES = 64  # the newest that are looked at


@dataclass
class _Record:
    """What came of matches of one length.

    Args:
        right: Tokens that were as drafted, or would have been.
        tried: Tokens that were looked at.
    """

    right: float
    tried: float

    def note(self, right: int, tried: int) -> None:
        """Add tokens."""
        self.right += right
        self.tried += tried
        if self.tried > _MEMORY:
            self.right *= _FADING
            self.tried *= _FADING


class PromptLookup:
    """Drafts for one request, see `qeff_zoo.runtime.speculation.Drafter`.

    Args:
        costs: Costs of the calls that check drafts.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._tokens: list[int] = []
        #: By the tokens of a shortest match: where what followed them begins, when they came last; 0 for nowhere.
        self._last: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []  # of each such place, where it was the time before
        self._records = {
            length: _Record(_BELIEF * chance, _BELIEF) for length, chance in _CHANCES.items()
        }
        self._matched = 0  # length of the last match
        self._guess: list[
            int
        ] = []  # that nobody has judged yet: the last draft, or where none paid, its first token

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int]:
        """Guess what follows."""
        known = len(self._tokens)
        if self._guess and known < len(tokens):
            told = min(len(self._guess), len(tokens) - known)
            right = sum(1 for _ in takewhile(bool, map(eq, self._guess, tokens[known:])))
            self._note(right, told)
        for token in tokens[known:]:
            self._add(token)
        self._guess = []
        self._matched, start = self._match()
        if not self._matched:
            return []
        record = self._records[self._matched]
        count = self._costs.best(record.right / record.tried, most, rows)
        found = self._tokens[start : start + max(1, count)]
        while len(found) < count:  # what repeats to the end goes on repeating
            found.append(found[len(found) - (len(self._tokens) - start)])
        self._guess = found
        return found[:count]

    def accepted(self, count: int) -> None:
        """Learn how many of the last draft were right."""
        self._note(count, len(self._guess))
        self._guess = []

    def _note(self, right: int, told: int) -> None:
        self._records[self._matched].note(right, right + (right < told))

    def _add(self, token: int) -> None:
        """Note where what follows the newest tokens begins: here."""
        newest, place = self._newest(), len(self._tokens)
        self._before.append(self._last.get(newest, 0) if place >= _LEAST else 0)
        if place >= _LEAST:
            self._last[newest] = place
        self._tokens.append(token)

    def _match(self) -> tuple[int, int]:
        """Return the length of the longest run of newest tokens that came before, 0 for none, and what follows it.

        The length is one that chances are known of.
        """
        longest, start = 0, 0
        place = self._last.get(self._newest(), 0)
        for _ in range(_PLACES):
            if not place or longest == _LONGEST:
                break
            if (length := self._same(place)) > longest:
                longest, start = length, place
            place = self._before[place]
        return max((one for one in _CHANCES if one <= longest), default=0), start

    def _same(self, place: int) -> int:
        """Return how many tokens before a place are the newest ones, of which the shortest match is known to be."""
        tokens, length = self._tokens, _LEAST
        most = min(_LONGEST, place)
        while length < most and tokens[place - length - 1] == tokens[-length - 1]:
            length += 1
        return length

    def _newest(self) -> tuple[int, ...]:
        return tuple(self._tokens[-_LEAST:])
