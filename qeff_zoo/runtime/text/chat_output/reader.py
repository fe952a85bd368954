# SPDX-License-Identifier: Apache-2.0
"""Streamed text for parsers that are generators.

A parser yields events, and None where it needs more text; what it reads depends on the text alone, not on its pieces.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from qeff_zoo.runtime.text.chat_output.events import Event

_T = TypeVar("_T")
#: Part of a parser: yields events, or None for more text, and returns a value.
Parsing: TypeAlias = Generator[Event | None, None, _T]
#: Function that returns the event of a piece of text, if there is one.
Sink: TypeAlias = Callable[[str], Event | None]
_KEPT = 4096  # read characters that stay in memory
_BRACKETS = {"{": 1, "[": 1, "}": -1, "]": -1}


class Reader:
    """Text so far, and a position in it."""

    def __init__(self) -> None:
        self.text, self.at = "", 0
        #: Whether the text is complete.
        self.closed = False
        #: Whether the end of the complete text was reached.
        self.ended = False
        #: Whether a saved position must stay valid.
        self.held = False

    def feed(self, piece: str) -> None:
        """Append a piece of text."""
        self.text += piece

    def drop(self) -> None:
        """Forget the text that was read, unless a position is saved."""
        if self.at > _KEPT and not self.held:
            self.text, self.at = self.text[self.at :], 0

    def peek(self) -> Parsing[str]:
        """Return the next character; empty at the end."""
        while self.at >= len(self.text) and not self.closed:
            yield None
        self.ended = self.ended or self.at >= len(self.text)
        return self.text[self.at : self.at + 1]

    def skip_blanks(self) -> Parsing[None]:
        """Advance to a character that is no whitespace, or to the end."""
        while (yield from self.peek()).isspace():
            self.at += 1

    def literal(self, text: str) -> Parsing[bool]:
        """Advance over a text, where whitespace may have any length, also none; return False where it differs."""
        start = self.at
        for character in text:
            if character.isspace():
                yield from self.skip_blanks()
            elif (yield from self.peek()) == character:
                self.at += 1
            else:
                self.at = start
                return False
        return True

    def run(self, holds: Callable[[str], bool]) -> Parsing[str]:
        """Advance over characters with a property, and return them."""
        start = self.at
        while (one := (yield from self.peek())) and holds(one):
            self.at += 1
        return self.text[start : self.at]

    def until(self, marks: Sequence[str], sink: Sink) -> Parsing[str | None]:
        """Pass text on up to the first of some marks.

        Returns:
            The mark, to which the position has advanced; None at the end of the text.
        """
        while True:
            starts = [(at, mark) for mark in marks if (at := self.text.find(mark, self.at)) >= 0]
            first = min(starts, key=lambda one: (one[0], -len(one[1])), default=None)
            end = first[0] if first else len(self.text) - self._open(marks)
            if end > self.at:
                piece, self.at = self.text[self.at : end], end
                if event := sink(piece):
                    yield event
                self.drop()
            if first:
                self.at += len(first[1])
                return first[1]
            if self.closed:
                return None
            yield None

    def _open(self, marks: Sequence[str]) -> int:
        """Return the length of the text's end that begins a mark."""
        if self.closed:
            return 0
        longest = min(len(self.text) - self.at, max(map(len, marks), default=1) - 1)
        ends = (self.text[len(self.text) - length :] for length in range(longest, 0, -1))
        return next((len(end) for end in ends if any(mark.startswith(end) for mark in marks)), 0)

    def json_value(self, sink: Sink, end: str = "", followers: Sequence[str] = ()) -> Parsing[bool]:
        """Pass the text of a JSON value on; return whether it is complete. Only its extent is found, no error in it.

        Args:
            sink: Function that returns the event of a piece.
            end: Mark after the value, which ends an incomplete one; empty for none.
            followers: Texts of which one follows such a mark within an incomplete string, or the output ends.
        """
        depth, quoted, escaped, begun, done = 0, False, False, False, False
        while True:
            start = self.at
            while self.at < len(self.text) and not done:
                one = self.text[self.at]
                if not (quoted or depth) and (one in ",]}" or one.isspace()):
                    done = True  # after a number or a word
                    break
                if end and (one == end[0] or (depth and not quoted and one.isspace())):
                    ends = self._ends(end, followers if quoted else None)
                    if ends is not False:  # it does, or more text decides
                        done = ends is True
                        break
                self.at, begun = self.at + 1, True
                if escaped:
                    escaped = False
                elif quoted and one == "\\":
                    escaped = True
                elif one == '"':
                    quoted = not quoted
                elif not quoted:
                    depth += _BRACKETS.get(one, 0)
                done = not (quoted or depth) and one in '"]}'
            if self.at > start and (event := sink(self.text[start : self.at])):
                yield event
            self.drop()
            if done or self.closed:
                return begun and not (quoted or depth)
            yield None

    def _ends(self, end: str, followers: Sequence[str] | None) -> bool | None:
        """Return whether a mark comes next, perhaps after blanks; None if more text decides.

        Args:
            end: The mark.
            followers: Texts of which one follows the mark, or the end of the output; None for anything.
        """
        rest = self.text[self.at :].lstrip() if followers is None else self.text[self.at :]
        if len(rest) < len(end):
            return None if end.startswith(rest) and not self.closed else False
        if not rest.startswith(end):
            return False
        if followers is None:
            return True
        after = rest[len(end) :].lstrip()
        if any(after.startswith(follower) for follower in followers) or (not after and self.closed):
            return True
        may_follow = any(follower.startswith(after) for follower in followers) and not self.closed
        return None if may_follow or (not after and not self.closed) else False
