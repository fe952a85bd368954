# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft: expected tokens over the measured cost of the call that checks them."""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from qeff_zoo.runtime.decoder import Decoder, Piece

_BEHIND = 512  # tokens: with each, attention costs more, and at the beginning of a text it is another kernel
_ROUNDS = 3  # of which the fastest counts: whatever else the machine does only adds
_SURE = 1.1  # times as many tokens a second as others get anyway who wait: what is hoped for is not sure


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What calls cost.

    Args:
        seconds: Time of calls that return logits after each token, by the number of tokens; 1 and others.
        together: Time of calls that decode one token of several rows, by the number of rows; 2 and others.
        repeats: Whether a rejected token costs more than itself: states that do not grow with the context are put back,
            and the tokens that were accepted run again, in front of the next call's.
        drafting: Seconds to draft one token.
        beginning: Seconds of a draft besides, however many tokens it has.
    """

    seconds: Mapping[int, float]
    together: Mapping[int, float] = field(default_factory=dict)
    repeats: bool = False
    drafting: float = 0.0
    beginning: float = 0.0

    def of(self, width: int) -> float:
        """Return the seconds of a call with that many tokens."""
        return _on_a_line(self.seconds, width)

    def best(self, chance: float, most: int, rows: int = 1) -> int:
        """Return how many tokens to draft, each of which is accepted with a chance if all before it were.

        Args:
            chance: 0 to 1.
            most: Tokens that may be drafted.
            rows: Number of waiting rows, this one included: a call of all has to make fewer tokens a second.
        """
        single = self.of(1)
        tokens, reached, repeated = 1.0, 1.0, 0.0
        best, count = rows / _on_a_line({1: single, **self.together}, rows), 0
        best *= _SURE if rows > 1 else 1
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


def _on_a_line(known: Mapping[int, float], size: int) -> float:
    """Return what a size costs, on a line through those that are known."""
    sizes = sorted(known)
    place = min(bisect_left(sizes, size), len(sizes) - 1)
    upper = sizes[place]
    if upper == size or place == 0:
        return known[upper]
    lower = sizes[place - 1]
    slope = (known[upper] - known[lower]) / (upper - lower)
    return known[lower] + slope * (size - lower)


def measure(decoder: Decoder, most: int) -> Costs:
    """Time calls of several widths, and of several rows; what rows retain is lost.

    Args:
        decoder: Idle decoder of a package that checks drafts.
        most: Drafted tokens of a call.
    """
    start = behind(decoder.sizes.ctx_len, most + 1)

    def wide(width: int) -> None:
        decoder.verify({0: Piece([0] * width, start)})

    def tall(rows: int) -> None:
        decoder.decode({row: Piece([0], start) for row in range(rows)})

    calls = {("wide", size): partial(wide, size) for size in _doubling(1, most + 1)}
    calls |= {("tall", size): partial(tall, size) for size in _doubling(2, decoder.sizes.rows)}
    found = dict(zip(calls, fastest(*calls.values()), strict=True))
    return Costs(
        seconds=_rising("wide", found),
        together=_rising("tall", found),
        repeats=not decoder.only_grows,
    )


def behind(ctx_len: int, width: int = 1) -> int:
    """Return where calls of a number of tokens are timed: behind as many tokens as texts often have."""
    return min(_BEHIND, ctx_len - width)


def fastest(*calls: Callable[[], object]) -> list[float]:
    """Time calls in turns; return the seconds of each."""
    least = [float("inf")] * len(calls)
    for _ in range(_ROUNDS):
        for place, call in enumerate(calls):
            begun = time.perf_counter()
            call()
            least[place] = min(least[place], time.perf_counter() - begun)
    return least


def _doubling(least: int, most: int) -> list[int]:
    """Return sizes that double, and the largest."""
    sizes = {least << place for place in range(most.bit_length())} | {most}
    return sorted(size for size in sizes if least <= size <= most)


def _rising(name: str, found: Mapping[tuple[str, int], float]) -> dict[int, float]:
    """Return the seconds of one kind of call by size; a larger one that seems to be cheaper is noise."""
    sizes = [size for one, size in found if one == name]
    return dict(zip(sizes, accumulate((found[name, size] for size in sizes), max), strict=True))
