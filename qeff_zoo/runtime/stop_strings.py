# SPDX-License-Identifier: Apache-2.0
"""Growing text, up to the first of some stop strings: text that may become one of them is held back."""

from collections.abc import Sequence


class StopStrings:
    """Watches growing text. Where it ends depends on the text alone, not on the pieces it comes in.

    Args:
        stops: Strings, not empty, of which the first to be complete ends the text before it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        #: Whether a string was found.
        self.found = False

    def push(self, piece: str) -> str:
        """Add text; return what is now sure to come before any stop string."""
        text = self._held + piece
        if not self._stops:
            return text
        ends = [
            (at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0
        ]  # the longest of those that are complete first
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back: no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return how much of the end of a text begins a stop string."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
