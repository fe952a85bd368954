# SPDX-License-Identifier: Apache-2.0
"""Samplers that llama.cpp has and transformers lacks: XTC, mirostat, and the DRY penalty of repetitions.

Each has the numbers of llama.cpp's, but for the random ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qeff_zoo.runtime.decoding.logits_processors import TextSoFar

#: Number of tokens whose probabilities show how the distribution falls, for mirostat 1.
_ESTIMATED = 100
#: Largest exponent of e in float32, which limits a penalty.
_FLOAT_MAX_LOG = 88.7228391
#: Maximum number of tokens of a sequence that interrupts repetitions, after its first one.
_MAX_TAIL = 20
_CACHED = 8  # tables of interrupting sequences

#: Sequences of tokens that interrupt repetitions: what may follow a token, by that token.
Breakers = Mapping[int, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, kw_only=True)
class Xtc:
    """Exclusion of the most likely tokens (XTC), so that a text is less predictable.

    Args:
        probability: Probability of an exclusion at each token.
        threshold: Probability of a token; of the tokens that reach it all but the least likely are excluded.

    Raises:
        GenerationError: If a value is out of range.
    """

    probability: float
    threshold: float = 0.1

    def __post_init__(self) -> None:
        _require("xtc_probability", self.probability, 0 <= self.probability <= 1, "0 to 1")
        _require("xtc_threshold", self.threshold, 0 <= self.threshold <= 1, "0 to 1")

    def limit(self, shares: Array, number: float) -> Array:
        """Return the indices of the tokens to sample from, ascending.

        Args:
            shares: Unnormalized probabilities.
            number: A random number from 0 to 1.
        """
        everything = np.arange(len(shares))
        if number > self.probability or self.threshold > 0.5 or len(shares) < 2:
            return everything
        reached = np.flatnonzero(shares >= self.threshold * shares.sum(dtype=np.float64))
        if len(reached) < 2:
            return everything
        least = reached[np.argsort(-shares[reached], kind="stable")[-1]]
        return np.setdiff1d(everything, reached[reached != least])


@dataclass(frozen=True, kw_only=True)
class Mirostat:
    """Mirostat: sampling with a constant surprise, in place of top_k, top_p, min_p and other limits.

    Args:
        version: 1 or 2.
        tau: Mean surprise of the tokens, in bits.
        eta: Learning rate of the limit.

    Raises:
        GenerationError: If a value is out of range.
    """

    version: int
    tau: float = 5.0
    eta: float = 0.1

    def __post_init__(self) -> None:
        _require("mirostat", self.version, self.version in (1, 2), "1 or 2")
        _require("mirostat_tau", self.tau, 0 <= self.tau <= 100, "0 to 100")
        _require("mirostat_eta", self.eta, 0 <= self.eta <= 1, "0 to 1")


class Surprise:
    """State of mirostat in one generation.

    Args:
        mirostat: Parameters.
    """

    def __init__(self, mirostat: Mirostat) -> None:
        self._mirostat, self._limit = mirostat, 2 * mirostat.tau

    def limit(self, shares: Array) -> Array:
        """Return the indices of the tokens to sample from, ascending.

        Args:
            shares: Unnormalized probabilities of the whole vocabulary.
        """
        order = np.argsort(-shares, kind="stable")
        probabilities = shares[order] / shares.sum(dtype=np.float64)
        if self._mirostat.version == 1:
            count = _count(probabilities, len(shares), self._limit)
        else:
            with np.errstate(divide="ignore"):
                beyond = np.flatnonzero(-np.log2(probabilities) > self._limit)
            count = int(beyond[0]) if len(beyond) else len(order)
        return np.sort(order[: max(1, count)])

    def observe(self, probability: float) -> None:
        """Correct the limit by the probability of a sampled token among those of `limit`."""
        surprise = -math.log2(max(probability, float(np.finfo(np.float32).tiny)))
        self._limit -= self._mirostat.eta * (surprise - self._mirostat.tau)


def _count(probabilities: Array, vocab_size: int, limit: float) -> int:
    """Return the number of tokens with the surprise of `limit`, if probabilities fall by a power of their rank."""
    known = probabilities[:_ESTIMATED]
    ranks = np.arange(1, len(known), dtype=np.float64)
    steps = np.log((ranks + 1) / ranks)
    with np.errstate(divide="ignore", invalid="ignore"):
        falls = np.log(known[:-1] / known[1:])
    power = float((steps * falls).sum() / (steps * steps).sum())
    excess = power - 1
    if not math.isfinite(power) or power <= 0 or excess == 0:
        return 1 if power > 0 else vocab_size
    try:
        count = (excess * 2**limit / (1 - float(vocab_size) ** -excess)) ** (1 / power)
    except OverflowError:
        return vocab_size
    return int(min(count, vocab_size))


@dataclass(frozen=True, kw_only=True)
class Dry:
    """DRY: a penalty for tokens that continue a repetition of the text, prompt included.

    Args:
        multiplier: Penalty of a repetition of `allowed_length` tokens, which grows by `base` with each further one.
        base: Factor of the penalty for each further token.
        allowed_length: Number of repeated tokens without a penalty for the next one, minus 1.
        last_n: Number of the last tokens in which repetitions are looked for; -1 for all.
        sequence_breakers: Texts that no repetition extends across.
        breakers: The same as token ids, see `resolved`.

    Raises:
        GenerationError: If a value is out of range.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int = -1
    sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    breakers: Breakers = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        _require("dry_multiplier", self.multiplier, 0 <= self.multiplier <= 100, "0 to 100")
        _require("dry_base", self.base, 1.1 <= self.base <= 100, "1.1 to 100")
        _require("dry_allowed_length", self.allowed_length, self.allowed_length >= 1, "1 or more")
        _require("dry_penalty_last_n", self.last_n, self.last_n >= -1, "-1 or more")
        _require("dry_sequence_breakers", "", all(self.sequence_breakers), "no empty text")

    def resolved(self, tokenizer: Tokenizer | None) -> "Dry":
        """Return the penalty with the token ids of its breakers.

        Raises:
            GenerationError: If there are breakers, and no tokenizer.
        """
        if not self.sequence_breakers:
            return self
        if tokenizer is None:
            raise GenerationError(
                "DRY has sequence breakers, and the package has no tokenizer.json; expected one. Leave them out."
            )
        return replace(self, breakers=_breakers(tokenizer, self.sequence_breakers))

    def __call__(self, scores: Array, text: "TextSoFar") -> None:
        """Lower the logits of tokens that continue a repetition, but for those that interrupt any."""
        count = len(text.tokens)
        tokens = text.tokens[0 if self.last_n < 0 else max(0, count - self.last_n) :]
        longest = self._unbroken(tokens)
        if len(tokens) <= self.allowed_length or longest < self.allowed_length:
            return
        exponent = int(_FLOAT_MAX_LOG / math.log(self.base))
        lengths = _repeated(tokens, min(longest, self.allowed_length + exponent))
        for token, length in lengths.items():
            is_breaker = () in self.breakers.get(token, ())
            if length >= self.allowed_length and token < len(scores) and not is_breaker:
                scores[token] -= self.multiplier * self.base ** (length - self.allowed_length)

    def _unbroken(self, tokens: Sequence[int]) -> int:
        """Return the number of the last tokens without a breaker."""
        for back, token in enumerate(reversed(tokens)):
            tails = self.breakers.get(token)
            if tails is None:
                continue
            start = len(tokens) - back
            fits = [
                len(tail)
                for tail in tails
                if len(tail) <= back and tuple(tokens[start : start + len(tail)]) == tail
            ]
            if fits:
                return back - max(fits)
        return len(tokens)


def _repeated(tokens: Sequence[int], most: int) -> dict[int, int]:
    """Return how many tokens before a token equal the last ones, at most `most`; the most of all its occurrences."""
    known = np.asarray(tokens)
    positions = np.flatnonzero(known[:-1] == known[-1])  # of the last token before another one
    counts: dict[int, int] = {}
    for length in range(1, most + 1):
        if not len(positions):
            break
        counts |= dict.fromkeys(known[positions + 1].tolist(), length)
        inside = positions[positions >= length]
        positions = inside[known[inside - length] == known[len(known) - 1 - length]]
    return counts


@lru_cache(_CACHED)
def _breakers(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """Return sequences of tokens whose text has one of some texts, also after other text of their first tokens."""
    breakers: dict[int, set[tuple[int, ...]]] = {}
    known = tokenizer.token_bytes or {
        token: tokenizer.piece(token).encode() for token in range(tokenizer.vocab_size)
    }
    pieces = {token: data.decode(errors="replace") for token, data in known.items()}
    for text in texts:
        for token, piece in pieces.items():
            if text in piece:
                breakers.setdefault(token, set()).add(())
                continue
            for length in range(1, min(len(text), len(piece) + 1)):
                if piece.endswith(text[:length]):
                    rest = tokenizer.spell(text[length:])[:_MAX_TAIL]
                    breakers.setdefault(token, set()).add(tuple(rest))
    return {token: tuple(sorted(tails)) for token, tails in breakers.items()}


def _require(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise GenerationError(
            f"Cannot sample with {name} {value!r}; expected {expected}. Change {name}."
        )
