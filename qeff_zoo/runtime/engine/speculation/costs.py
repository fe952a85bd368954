# SPDX-License-Identifier: Apache-2.0
"""Number of tokens to draft: expected tokens over the measured cost of the call that checks them."""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder

_BEHIND = 512  # tokens: attention costs more with each, and short contexts use another kernel
_ROUNDS = 3  # measurements, of which the fastest counts: other load only adds time
_SURE = 1.1  # required speedup over a shared call of all slots: the expected tokens are uncertain


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Measured costs of calls.

    Args:
        seconds: Time of calls that return logits after each token, by the number of tokens; 1 and others.
        together: Time of calls that decode one token of several batch slots, by the number of slots; 2 and others.
        repeats: Whether a rejected token costs more than itself: states of constant size are restored, and the
            accepted tokens run again at the start of the next call.
        drafting: Time in seconds to draft one token.
        beginning: Fixed time of a draft in seconds, independent of its number of tokens.
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
        """Return the number of tokens to draft, given the probability of acceptance of each after accepted ones.

        Args:
            chance: Probability from 0 to 1.
            most: Maximum number of draft tokens.
            rows: Number of waiting slots, including this one: a shared call of all has to generate fewer tokens per
                second.
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
    """Return the cost of a size by linear interpolation of the known ones."""
    sizes = sorted(known)
    index = min(bisect_left(sizes, size), len(sizes) - 1)
    upper = sizes[index]
    if upper == size or index == 0:
        return known[upper]
    lower = sizes[index - 1]
    slope = (known[upper] - known[lower]) / (upper - lower)
    return known[lower] + slope * (size - lower)


def measure(decoder: Decoder, most: int) -> Costs:
    """Measure calls of several widths, and of several batch slots; their states are lost.

    Args:
        decoder: Idle decoder of a package that checks drafts.
        most: Maximum number of draft tokens in a call.
    """
    start = behind(decoder.sizes.ctx_len, most + 1)

    def wide(width: int) -> None:
        decoder.verify({0: Piece([0] * width, start)})

    def tall(rows: int) -> None:
        decoder.decode({row: Piece([0], start) for row in range(rows)})

    calls = {("wide", size): partial(wide, size) for size in _doubling(1, most + 1)}
    calls |= {("tall", size): partial(tall, size) for size in _doubling(2, decoder.sizes.rows)}
    seconds = dict(zip(calls, fastest(*calls.values()), strict=True))
    return Costs(
        seconds=_rising("wide", seconds),
        together=_rising("tall", seconds),
        repeats=not decoder.only_grows,
    )


def behind(ctx_len: int, width: int = 1) -> int:
    """Return the position at which calls of a number of tokens are measured: after as many tokens as is typical."""
    return min(_BEHIND, ctx_len - width)


def fastest(*calls: Callable[[], object]) -> list[float]:
    """Measure calls alternately; return the seconds of each."""
    least = [float("inf")] * len(calls)
    for _ in range(_ROUNDS):
        for number, call in enumerate(calls):
            begun = time.perf_counter()
            call()
            least[number] = min(least[number], time.perf_counter() - begun)
    return least


def _doubling(least: int, most: int) -> list[int]:
    """Return sizes that double, and the largest."""
    sizes = {least << place for place in range(most.bit_length())} | {most}
    return sorted(size for size in sizes if least <= size <= most)


def _rising(name: str, seconds: Mapping[tuple[str, int], float]) -> dict[int, float]:
    """Return the seconds of one kind of call by size; a larger one that seems cheaper is noise."""
    sizes = [size for one, size in seconds if one == name]
    return dict(zip(sizes, accumulate((seconds[name, size] for size in sizes), max), strict=True))
