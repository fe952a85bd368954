# SPDX-License-Identifier: Apache-2.0
"""Streamed text up to the first stop string: text that may begin one is held back."""

from collections.abc import Sequence


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


def _overlap(text: str, stop: str) -> int:
    """Return the length of the text's end that begins a stop string."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
