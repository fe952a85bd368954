# SPDX-License-Identifier: Apache-2.0
"""Ends of generated text: before stop strings of a request, and behind stop strings of a package."""

from collections.abc import Callable, Sequence

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # part of a character


class StopStrings:
    """Stop string search in streamed text. The end depends on the text alone, not on its pieces.

    Args:
        stops: Stop strings, not empty; text ends before the first complete one.
        included: Whether text ends behind it instead.
    """

    def __init__(self, stops: Sequence[str], *, included: bool = False) -> None:
        self._stops, self._included = stops, included
        self._held = ""
        #: Whether a stop string was found, and which.
        self.found, self.match = False, ""

    def push(self, piece: str) -> str:
        """Add text; return text that is sure to come before any stop string."""
        text = self._held + piece
        if not self._stops:
            return text
        ends = [
            (at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0
        ]  # the longest of those that are complete first
        if ends:
            end, start, self.match = min(ends)
            self.found, self._held = True, ""
            return text[: end if self._included else start]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return text that was held back, at the end."""
        held, self._held = self._held, ""
        return held


class StopSequences:
    """Stop string search in tokens, as in transformers' `generate`: special tokens are texts, and the prompt counts.

    Args:
        stops: Stop strings, not empty; text ends with the token that completes one.
        spell: Function from token ids to their text.
        prompt: Tokens before the text.
    """

    def __init__(
        self, stops: Sequence[str], spell: Callable[[Sequence[int]], str], prompt: Sequence[int]
    ) -> None:
        self._stops, self._spell = stops, spell
        # A token has at least one byte, and a stop string may begin within its first token.
        self._length = max(len(stop.encode()) for stop in stops)
        self._tokens = [*prompt[-self._length :]]
        #: Stop string that was completed; "" before.
        self.match = ""

    def push(self, token: int) -> bool:
        """Add a token; return whether it completes a stop string."""
        self._tokens = [*self._tokens, token][-self._length - 1 :]
        before, text = (self._spell(tokens) for tokens in (self._tokens[:-1], self._tokens))
        begun = len(before.rstrip(_INCOMPLETE))
        for stop in self._stops:
            if text.find(stop, max(0, begun - len(stop) + 1)) >= 0:
                self.match = stop
        return bool(self.match)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the text's end that begins a stop string."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
