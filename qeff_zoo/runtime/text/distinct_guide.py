# SPDX-License-Identifier: Apache-2.0
"""Guide of outputs with arrays of different items (`uniqueItems`), around the guide of a grammar.

It reads the JSON as it is generated, and forbids tokens that complete an item for the second time, or after which no
other item can be completed.
"""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from qeff_zoo.errors import NoTokenError
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.distinct_places import Inside, Outside, PlaceReader, Places, mark

_BLANKS, _CLOSING = b" \t\r\n", frozenset(b'",]}')
#: Number of allowed tokens up to which each is checked; of more, those that complete an item or continue a known one.
_FEW = 512
#: Maximum number of tokens that are tried to find a way to another item.
_TRIES = 256
_LONGEST = 64  # bytes of a token that is looked up as the beginning of a known item


class Spellings:
    """Tokens by their bytes.

    Args:
        tokens: Bytes of each token; empty for a token that is no text.
    """

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        #: Tokens of the same bytes.
        self.by_bytes: dict[bytes, list[int]] = {}
        for token, data in enumerate(tokens):
            if data:
                self.by_bytes.setdefault(data, []).append(token)
        #: Whether a token may complete an item, in a string and outside of it.
        self.quoting = np.array([b'"' in data for data in tokens], bool)
        self.closing = np.array([not _CLOSING.isdisjoint(data) for data in tokens], bool)
        #: Whether a token may begin an array and complete an item of it.
        self.opening = np.array([b"," in data[data.find(b"[") :] for data in tokens], bool)


class DistinctGuide:
    """Guide that keeps the items of arrays different.

    Args:
        matcher: Matcher of the grammar in its initial state.
        places: Places of the JSON values.
        spellings: Tokens of the vocabulary.
        marks: Tokens that are marks.
    """

    def __init__(
        self, matcher: Any, places: Places, spellings: Spellings, marks: Collection[int] = ()
    ) -> None:
        self._matcher, self._spellings, self._marks = matcher, spellings, marks
        self._reader = PlaceReader(places)
        self._state: Outside | Inside = self._reader.first

    def _after(self, state: Outside | Inside, token: int) -> Outside | Inside | None:
        """Return what has been read after a token; None if an item occurs twice."""
        data = mark(token) if token in self._marks else self._spellings.tokens[token]
        return self._reader.after(state, data)

    def allowed(self) -> Array:
        """See `Guide`."""
        mask = _mask(self._matcher, len(self._spellings.tokens)).copy()
        for token in self._doubtful(self._state, mask):
            mask[token] = self._fits(token)
        if not mask.any():
            raise NoTokenError(
                "No token goes on with the answer: an array has all different items that its schema allows. Expected "
                "a schema with more of them, or `maxItems`. Change it."
            )
        return mask

    def allows(self, token: int) -> bool:
        """See `Guide`."""
        return bool(self._matcher.validate_tokens([token])) and self._fits(token)

    def take(self, token: int) -> bool:
        """See `Guide`."""
        self._matcher.consume_token(token)
        self._state = self._after(self._state, token) or self._state
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())

    def _doubtful(self, state: Outside | Inside, mask: Array) -> Iterable[int]:
        """Return the allowed tokens that may not fit."""
        if isinstance(state, Outside) and not self._reader.may_begin(state):
            return ()
        reading = state.reading if isinstance(state, Inside) else None
        if reading is None or not any(one.differs for one in reading.opened):
            tokens: list[int] = np.flatnonzero(mask & self._spellings.opening).tolist()
            return tokens
        if np.count_nonzero(mask) <= _FEW:
            few: list[int] = np.flatnonzero(mask).tolist()
            return few
        closing = self._spellings.quoting if reading.in_text else self._spellings.closing
        several = {*np.flatnonzero(mask & closing).tolist()}
        for text, begun in reading.items():
            if text.startswith(begun):
                rest = text[len(begun) : len(begun) + _LONGEST]
                for end in range(1, len(rest) + 1):
                    several.update(self._spellings.by_bytes.get(rest[:end], ()))
        return [token for token in several if mask[token]]

    def _fits(self, token: int) -> bool:
        """Whether no item occurs twice after an allowed token, and another one can be completed."""
        after = self._after(self._state, token)
        if not isinstance(after, Inside) or not after.reading.is_known():
            return after is not None
        matcher = self._matcher.deep_copy()
        matcher.consume_token(token)
        return self._has_other(matcher, after, [_TRIES])

    def _has_other(self, matcher: Any, state: Inside, tries: list[int]) -> bool:
        """Whether a known item can become another one."""
        tokens = self._spellings.tokens
        known: list[tuple[int, Inside]] = []
        for token in map(int, np.flatnonzero(_mask(matcher, len(tokens)))):
            data = tokens[token]
            if not data or (data[0] in _BLANKS and not state.reading.in_text):
                continue  # the same is possible without the blank
            tries[0] -= 1
            after = self._after(state, token)
            is_known = isinstance(after, Inside) and after.reading.is_known()
            if tries[0] < 0 or (after and not is_known):
                return True
            if isinstance(after, Inside):
                known.append((token, after))
        for token, after in known:
            further = matcher.deep_copy()
            further.consume_token(token)
            if self._has_other(further, after, tries):
                return True
        return False


def _mask(matcher: Any, size: int) -> Array:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    mask: Array = np.unpackbits(bits, count=size, bitorder="little").view(bool)
    return mask
