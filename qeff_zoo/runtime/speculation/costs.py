# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft: expected tokens over the measured cost of the call that checks them."""

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from qeff_zoo.runtime.decoder import Decoder, Piece

_ROUNDS = 3  # of which the fastest counts: whatever else the machine does only adds


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What calls cost.

    Args:
        seconds: Of calls that return logits after each of their tokens, by the number of tokens; 1 and others.
        repeats: Whether a rejected token costs more than itself: states that do not grow with the context are put back,
            and the tokens that were accepted run again, in front of the next call's.
        drafting: Seconds to draft one token.
        beginning: Seconds of a draft besides, however many tokens it has.
    """

    seconds: Mapping[int, float]
    repeats: bool = False
    drafting: float = 0.0
    beginning: float = 0.0

    def of(self, width: int) -> float:
        """Return the seconds of a call with that many tokens, on a line through those that were measured."""
        known = sorted(self.seconds)
        place = min(bisect_left(known, width), len(known) - 1)
        upper = known[place]
        if upper == width or place == 0:
            return self.seconds[upper]
        lower = known[place - 1]
        slope = (self.seconds[upper] - self.seconds[lower]) / (upper - lower)
        return self.seconds[lower] + slope * (width - lower)

    def best(self, chance: float, most: int) -> int:
        """Return how many tokens to draft, each of which is accepted with a chance if all before it were.

        Args:
            chance: 0 to 1.
            most: Tokens that may be drafted.
        """
        single = self.of(1)
        tokens, reached, repeated = 1.0, 1.0, 0.0
        best, count = 1 / single, 0
        for width in range(2, most + 2):
            wide = self.of(width)
            if self.repeats:
                repeated += reached * (1 - chance) * (wide - single)
            reached *= chance
            tokens += reached
            rate = tokens / (wide + repeated + self.beginning + (width - 1) * self.drafting)
            if rate > best:
                best, count = rate, width - 1
        return count


def measure(decoder: Decoder, most: int) -> Costs:
    """Time calls of several widths; what row 0 retains is lost.

    Args:
        decoder: Of a package that checks drafts, in use by nobody.
        most: Drafted tokens of a call.
    """
    widths = {1, most + 1}
    while (width := 2 * max(widths - {most + 1})) <= most:
        widths.add(width)
    # Behind some tokens: at the beginning of a text attention is another, cheaper kernel.
    start = min(64, decoder.sizes.ctx_len - most - 1)
    seconds = dict.fromkeys(sorted(widths), float("inf"))
    for _ in range(_ROUNDS):
        for width, least in seconds.items():
            begun = time.perf_counter()
            decoder.verify({0: Piece([0] * width, start)})
            seconds[width] = min(least, time.perf_counter() - begun)
    # A wider call that seems to be cheaper is noise.
    slowest = 0.0
    for width, one in seconds.items():
        slowest = seconds[width] = max(slowest, one)
    return Costs(seconds=seconds, repeats=not decoder.only_grows)
