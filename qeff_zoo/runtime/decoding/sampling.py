# SPDX-License-Identifier: Apache-2.0
"""Sampling: logits in, the next token out, greedily or at random, as transformers' `generate` does."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoding.llama_samplers import Dry, Mirostat, Surprise, Xtc
from qeff_zoo.runtime.decoding.logits_processors import LogitsProcessors, require_token
from qeff_zoo.runtime.decoding.sampling_limits import (
    above,
    above_entropy,
    informative,
    largest,
    nucleus,
    typical,
)
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.grammar import Guide

_SEEDS = 1 << 64
_BLOCK = 512  # probabilities that are summed at once
_COLDEST = 1e-6  # minimum temperature: lower ones are equivalent in float32
_HOTTEST = 1e6  # maximum temperature: all tokens are equally likely
_WITHOUT = GenerationSettings()


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling parameters.

    `temperature`, `top_k`, `top_p`, `min_p`, `typical_p` and `repetition_penalty` that are not given are those of the
    package's generation_config.json, if it has them. `min_tokens` and `bad_words` replace its minimum length and its
    bad words. The order is that of `LogitsProcessors`, then temperature, `top_k`, `top_p`, `min_p`, `typical_p`, `xtc`.

    Args:
        temperature: Temperature; 0 for greedy decoding, 1 for the model's distribution.
        top_k: Number of most likely tokens to sample from; 0 for all.
        top_p: Probability that the most likely tokens to sample from reach together.
        min_p: Minimum probability of tokens to sample from, as a fraction of the most likely one's.
        repetition_penalty: Penalty for tokens of the prompt and of the generated text; 1 for none.
        presence_penalty: Value subtracted from the logits of tokens in the generated text.
        frequency_penalty: Penalty like `presence_penalty`, for each occurrence of the token in the generated text.
        seed: Seed; the same seed generates the same text, independent of concurrent requests. None for a random one.
        logprobs: Number of most likely tokens with returned log-probabilities, besides that of the sampled token;
            None for no log-probabilities. They are the model's, without penalties, temperature and limits.
        prompt_logprobs: The same number for tokens of the prompt, whose log-probabilities are returned as well; None
            for none. The prompt then runs token by token.
        logit_bias: Values added to the logits of tokens.
        allowed_token_ids: Tokens to sample from; None for all.
        bad_words: Texts, or sequences of token ids, that are not generated. A text is excluded at the start of a word,
            and within one.
        min_tokens: Number of tokens before which no EOS token, stop token or stop string ends the text.
        typical_p: Probability that the tokens of the most typical surprise to sample from reach together.
        xtc: Exclusion of the most likely tokens; None for none.
        mirostat: Constant surprise in place of all limits; None for the limits.
        dry: Penalty of repetitions; None for none.

    Raises:
        GenerationError: If a value is out of range; the message lists all of them.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Collection[int] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    min_tokens: int = 0
    typical_p: float = 1.0
    xtc: Xtc | None = None
    mirostat: Mirostat | None = None
    dry: Dry | None = None

    #: Names of the given parameters.
    given: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, **given: Any) -> "Sampling":
        instance = super().__new__(cls)
        object.__setattr__(instance, "given", frozenset(given))
        return instance

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise GenerationError("\n".join(problems))

    def over(self, settings: GenerationSettings) -> tuple["Sampling", GenerationSettings]:
        """Return complete parameters, and the settings beside them: given parameters replace settings.

        Args:
            settings: Settings of a package.
        """
        left = {name: by for name, by in settings.sampling.items() if name not in self.given}
        if "min_tokens" in self.given:
            settings = settings.updated(min_length=None, min_new_tokens=None)
        if "bad_words" in self.given:
            settings = settings.updated(bad_words_ids=None)
        if "typical_p" in self.given:
            settings = settings.updated(typical_p=self.typical_p)
        return replace(self, **left), settings

    def _problems(self) -> Iterator[str]:
        ranges: dict[str, tuple[bool, str]] = {
            "temperature": (0 <= self.temperature <= _HOTTEST, f"0 to {_HOTTEST:,.0f}"),
            "top_k": (self.top_k >= 0, "0 or more"),
            "top_p": (0 <= self.top_p <= 1, "0 to 1"),
            "min_p": (0 <= self.min_p <= 1, "0 to 1"),
            "repetition_penalty": (0.01 <= self.repetition_penalty <= 100, "0.01 to 100"),
            "presence_penalty": (abs(self.presence_penalty) <= 100, "-100 to 100"),
            "frequency_penalty": (abs(self.frequency_penalty) <= 100, "-100 to 100"),
            "logprobs": (self.logprobs is None or self.logprobs >= 0, "0 or more"),
            "prompt_logprobs": (
                self.prompt_logprobs is None or self.prompt_logprobs >= 0,
                "0 or more",
            ),
            "logit_bias": (
                all(abs(value) <= 100 for value in self.logit_bias.values()),
                "values of -100 to 100",
            ),
            "allowed_token_ids": (
                self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
                "at least one token",
            ),
            "bad_words": (all(self.bad_words), "words of at least one character or token"),
            "typical_p": (0 < self.typical_p <= 1, "more than 0, and at most 1"),
            "min_tokens": (self.min_tokens >= 0, "0 or more"),
        }
        for name, (fits, expected) in ranges.items():
            if not fits:
                yield (
                    f"Cannot sample with {name} {getattr(self, name)!r}; expected {expected}. "
                    f"Change {name}."
                )


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of a token and its alternatives.

    Args:
        token_id: Id of the sampled token.
        logprob: Log-probability of the sampled token.
        top: Most likely tokens in descending order, as pairs of token id and log-probability.
        rank: Number of tokens that are at least as likely, itself included; 0 if not requested.
        offset: Start of the token in the generated text, in characters; beyond its end for a token without text
            there, such as those of a stop string.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int = 0
    rank: int = 0


@dataclass(frozen=True, eq=False)
class Drawn:
    """Randomly sampled token with its distribution.

    Args:
        token: Token id.
        among: All candidate tokens, ascending.
        shares: Probabilities of the candidates, which add up to 1.
    """

    token: int
    among: Array
    shares: Array


def token_of(guess: int | Drawn) -> int:
    """Return the token of a draft, with or without probabilities."""
    return guess.token if isinstance(guess, Drawn) else guess


class Sampler:
    """Sampler of one generation, token by token.

    Args:
        sampling: Complete sampling parameters, with words as token ids.
        prompt: Token ids of the prompt, or first tokens of a decoder.
        guide: Guide with the allowed next tokens; None if all are allowed.
        ends: Tokens that end the text, and that `min_tokens` excludes.
        settings: Generation settings of the package or the request.
        source: Token ids of the encoder's text; None for those of the prompt.
        limit: Maximum number of generated tokens; None for no limit.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        guide: Guide | None = None,
        ends: Collection[int] = (),
        *,
        settings: GenerationSettings = _WITHOUT,
        source: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> None:
        self._sampling, self._guide, self._settings = sampling, guide, settings
        self._processors = LogitsProcessors(
            settings,
            sampling,
            prompt,
            source=source,
            limit=limit,
            ends=ends,
            forces=guide is None,
        )
        #: Whether the guide allows no further token.
        self.complete = False
        self._random = generator(sampling)
        self._surprise = Surprise(sampling.mirostat) if sampling.mirostat else None

    def next(self, logits: Array) -> int:
        """Return the next token.

        Args:
            logits: Logits (vocab,), float32; they are not modified.

        Raises:
            GenerationError: If a logit is not a number, or no token is allowed.
        """
        token = self._checked(logits)
        if self._random is not None:
            tokens, shares = self._limited(self._scores(logits))
            index = _reach(shares, self._random.random())
            token = int(tokens[index])
            if self._surprise is not None:
                self._surprise.observe(float(shares[index] / shares.sum(dtype=np.float64)))
        else:
            token = self._best(logits, token)
        return self.take(token)

    def _checked(self, logits: Array) -> int:
        """Return the token with the largest logit; if the settings replace invalid logits, any token."""
        return 0 if self._settings.remove_invalid_values else likeliest(logits)

    def _best(self, logits: Array, token: int) -> int:
        """Return the best allowed token; the guide computes its mask only if it forbids the best token without it.

        Args:
            logits: Logits (vocab,).
            token: Token with the largest logit.
        """
        scores = self._processors(logits)
        best = token if scores is logits else int(scores.argmax())
        require_token(scores[best : best + 1])
        if self._guide is None or self._guide.allows(best):
            return best
        return int(self._guided(scores).argmax())

    def draw(self, logits: Array) -> Drawn:
        """Sample a token at random without appending it.

        Args:
            logits: Logits (vocab,), float32; they are not modified.
        """
        assert self._random is not None
        tokens, shares = self._limited(self._scores(logits))
        shares = shares / shares.sum(dtype=np.float64)
        return Drawn(int(tokens[_reach(shares, self._random.random())]), tokens, shares)

    def next_of(self, logits: Array, guess: Drawn) -> int:
        """Return the next token: a draft with probability min(1, p/q), else a sample of the remainder of p.

        Args:
            logits: Logits (vocab,), float32; they are not modified.
            guess: Draft token sampled from q. The result has the distribution of `next`, p, for any q.

        Raises:
            GenerationError: If a logit is not a number.
        """
        if self._random is None or self._surprise is not None:
            return self.next(logits)
        self._checked(logits)
        tokens, shares = self._limited(self._scores(logits))
        ours = shares / shares.sum(dtype=np.float64)
        drafted = np.zeros_like(ours)
        at = np.searchsorted(guess.among, tokens).clip(max=len(guess.among) - 1)
        known = guess.among[at] == tokens
        drafted[known] = guess.shares[at[known]]
        index = np.flatnonzero(tokens == guess.token)
        # The draft was sampled from q, which therefore is above 0.
        if len(index) and self._random.random() * drafted[index[0]] < ours[index[0]]:
            token = guess.token
        else:
            left = np.maximum(ours - drafted, 0)
            # If only rounding leaves nothing, p equals q.
            token = int(tokens[_reach(left if left.any() else ours, self._random.random())])
        return self.take(token)

    def logprobs(self, logits: Array, token: int) -> TokenLogprobs | None:
        """Return the log-probability of a token, if requested."""
        count = self._sampling.logprobs
        return None if count is None else self._logprobs(logits, token, count)

    def prompt_logprobs(self, logits: Array, token: int) -> TokenLogprobs:
        """Return the log-probability of a token of the prompt, with its rank."""
        logprobs = self._logprobs(logits, token, self._sampling.prompt_logprobs or 0)
        return replace(logprobs, rank=int((logits > logits[token]).sum()) + 1)

    @staticmethod
    def _logprobs(logits: Array, token: int, count: int) -> TokenLogprobs:
        values = logits - (logits.max() + np.log(np.exp(logits - logits.max()).sum()))
        best = largest(values, count) if count else np.empty(0, np.int64)
        best = best[np.argsort(-values[best], kind="stable")][:count]
        return TokenLogprobs(
            token_id=token,
            logprob=float(values[token]),
            top=tuple((int(one), float(values[one])) for one in best),
        )

    def take(self, token: int) -> int:
        """Record a token as the newest, sampled here or elsewhere."""
        self._processors.take(token)
        if self._guide is not None:
            self.complete = self._guide.take(token)
        return token

    def _scores(self, logits: Array) -> Array:
        """Return processed logits, with -inf for forbidden tokens; the same array if nothing applies."""
        scores = self._processors(logits)
        if scores is not logits or self._guide is not None:
            scores = self._guided(scores)
        return scores

    def _guided(self, scores: Array) -> Array:
        """Return logits with -inf for tokens that the guide forbids.

        Raises:
            NoTokenError: All tokens are excluded.
        """
        if self._guide is not None:
            scores = np.where(self._guide.allowed(), scores, np.float32(-np.inf))
        require_token(scores)
        return scores

    def _limited(self, scores: Array) -> tuple[Array, Array]:
        """Return the candidate tokens, ascending, and their unnormalized probabilities."""
        sampling, settings = self._sampling, self._settings
        temperature = np.float32(max(sampling.temperature, _COLDEST))
        tokens = np.arange(len(scores))
        if self._surprise is not None:
            shares = np.exp((scores - scores.max()) / temperature)
            inside = self._surprise.limit(shares)
            return tokens[inside], shares[inside]
        if settings.top_h is not None:
            tokens = informative(scores / temperature, settings.top_h)
        if 0 < sampling.top_k < len(tokens):
            tokens = tokens[largest(scores[tokens], sampling.top_k)]
        kept = scores[tokens]
        shares = np.exp((kept - kept.max()) / temperature)  # 1 for the most likely
        for limit, applies, value in (
            (nucleus, sampling.top_p < 1, sampling.top_p),
            (_likely, sampling.min_p > 0, sampling.min_p),
            (typical, settings.typical_p < 1, settings.typical_p),
            (above, settings.epsilon_cutoff > 0, settings.epsilon_cutoff),
            (above_entropy, settings.eta_cutoff > 0, settings.eta_cutoff),
        ):
            if applies:
                inside = limit(shares, value)
                tokens, shares = tokens[inside], shares[inside]
        if sampling.xtc is not None and self._random is not None:
            inside = sampling.xtc.limit(shares, self._random.random())
            tokens, shares = tokens[inside], shares[inside]
        return tokens, shares


def _likely(shares: Array, min_p: float) -> Array:
    """Return the indices of values of at least a fraction of the largest one, which is 1."""
    return np.flatnonzero(shares >= min_p)


def generator(sampling: Sampling) -> np.random.Generator | None:
    """Return the random number generator of a request; None for greedy decoding."""
    seed = None if sampling.seed is None else sampling.seed % _SEEDS
    return np.random.default_rng(seed) if sampling.temperature else None


def likeliest(logits: Array) -> int:
    """Return the token with the largest logit, the first of equals.

    Raises:
        GenerationError: If a logit is not a number.
    """
    token = int(logits.argmax())  # the first NaN, if any
    if not math.isfinite(logits[token]):
        raise GenerationError(
            f"The logit of token {token} is {logits[token]!r}; expected a number. The package "
            "computes nonsense: check it with `qeff-zoo validate` and build it again."
        )
    return token


def _reach(shares: Array, number: float) -> int:
    """Return the index where the cumulative sum exceeds `number` of the total; its value is never 0."""
    blocks = np.add.reduceat(shares, np.arange(0, len(shares), _BLOCK), dtype=np.float64).cumsum()
    wanted = min(number * blocks[-1], np.nextafter(blocks[-1], 0))  # below the total
    block = int(blocks.searchsorted(wanted, side="right"))
    block_shares = shares[block * _BLOCK : (block + 1) * _BLOCK]
    reached = (blocks[block - 1] if block else 0) + block_shares.cumsum(dtype=np.float64)
    wanted = min(wanted, np.nextafter(reached[-1], 0))
    return block * _BLOCK + int(reached.searchsorted(wanted, side="right"))
