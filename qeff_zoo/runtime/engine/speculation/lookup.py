# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup: the tokens that followed an earlier occurrence of the newest tokens, in prompt or generated text.

Texts that repeat (code edits, rewritten records, quotations) are drafted well, others hardly ever; so the number of
draft tokens depends on the acceptance of earlier drafts of this request, for each length of match.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq

from qeff_zoo.runtime.engine.speculation.costs import Costs

#: Prior probability of acceptance after a match of so many tokens.
_CHANCES = {2: 0.3, 3: 0.45, 4: 0.6, 5: 0.7, 6: 0.75, 7: 0.8, 8: 0.8, 16: 0.9}
_BELIEF = 4.0  # weight of a prior in tokens
_MEMORY = 24.0  # tokens after which older ones decay
_FADING = 0.75
_LEAST, _LONGEST = min(_CHANCES), max(_CHANCES)
_PLACES = 64  # the newest matches that are compared


@dataclass
class _Record:
    """Acceptance record of matches of one length.

    Args:
        right: Number of tokens that matched the draft, or would have.
        tried: Number of tokens that were compared.
    """

    right: float
    tried: float

    def note(self, right: int, tried: int) -> None:
        """Add numbers of tokens."""
        self.right += right
        self.tried += tried
        if self.tried > _MEMORY:
            self.right *= _FADING
            self.tried *= _FADING


class PromptLookup:
    """Drafter of one request by prompt lookup, see `qeff_zoo.runtime.engine.speculation.Drafter`.

    Args:
        costs: Costs of the calls that check drafts.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._tokens: list[int] = []
        #: Position after the last occurrence of each shortest match; 0 for none.
        self._last: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []  # the previous such position for each position
        self._records = {
            length: _Record(_BELIEF * chance, _BELIEF) for length, chance in _CHANCES.items()
        }
        self._matched = 0  # length of the last match
        self._guess: list[int] = []  # the last unchecked draft, or its first token if none paid off

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int]:
        """Return a draft of the next tokens."""
        known = len(self._tokens)
        if self._guess and known < len(tokens):
            checked = min(len(self._guess), len(tokens) - known)
            right = sum(1 for _ in takewhile(bool, map(eq, self._guess, tokens[known:])))
            self._note(right, checked)
        for token in tokens[known:]:
            self._add(token)
        self._guess = []
        self._matched, start = self._match()
        if not self._matched:
            return []
        record = self._records[self._matched]
        count = self._costs.best(record.right / record.tried, most, rows)
        following = self._tokens[start : start + max(1, count)]
        while len(following) < count:  # text that repeats up to its end is continued
            following.append(following[len(following) - (len(self._tokens) - start)])
        self._guess = following
        return following[:count]

    def accepted(self, count: int) -> None:
        """Update the acceptance record with the last draft."""
        self._note(count, len(self._guess))
        self._guess = []

    def _note(self, right: int, checked: int) -> None:
        self._records[self._matched].note(right, right + (right < checked))

    def _add(self, token: int) -> None:
        """Record the position after the newest tokens."""
        newest, position = self._newest(), len(self._tokens)
        self._before.append(self._last.get(newest, 0) if position >= _LEAST else 0)
        if position >= _LEAST:
            self._last[newest] = position
        self._tokens.append(token)

    def _match(self) -> tuple[int, int]:
        """Return the length of the longest earlier match of the newest tokens, 0 for none, and the position after it.

        The length is rounded down to one with a prior.
        """
        longest, start = 0, 0
        position = self._last.get(self._newest(), 0)
        for _ in range(_PLACES):
            if not position or longest == _LONGEST:
                break
            if (length := self._same(position)) > longest:
                longest, start = length, position
            position = self._before[position]
        return max((chance for chance in _CHANCES if chance <= longest), default=0), start

    def _same(self, position: int) -> int:
        """Return the length of the match before a position, which is known to be at least the shortest."""
        tokens, length = self._tokens, _LEAST
        most = min(_LONGEST, position)
        while length < most and tokens[position - length - 1] == tokens[-length - 1]:
            length += 1
        return length

    def _newest(self) -> tuple[int, ...]:
        return tuple(self._tokens[-_LEAST:])
