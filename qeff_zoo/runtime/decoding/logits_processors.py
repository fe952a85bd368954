# SPDX-License-Identifier: Apache-2.0
"""Logits processors of one generation, in the order of transformers' `generate`.

Each implements a setting of generation_config.json or a sampling parameter, and changes logits in place. Penalties
of OpenAI's API follow transformers' repetition penalty, and `logit_bias` precedes all, as in vLLM.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.errors import NoTokenError
from qeff_zoo.runtime.program import Array

_INFINITE = -np.inf
_LOWEST, _HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


class Penalties(Protocol):
    """Sampling parameters with processors of their own, see `Sampling`."""

    @property
    def logit_bias(self) -> Any:
        """Values by token."""

    @property
    def repetition_penalty(self) -> float:
        """Penalty for tokens of the text."""

    @property
    def presence_penalty(self) -> float:
        """Penalty for generated tokens."""

    @property
    def frequency_penalty(self) -> float:
        """Penalty for each occurrence of a generated token."""

    @property
    def dry(self) -> "Processor | None":
        """Penalty of repetitions."""

    @property
    def allowed_token_ids(self) -> Collection[int] | None:
        """Tokens to sample from."""

    @property
    def bad_words(self) -> Any:
        """Sequences of token ids that are not generated."""

    @property
    def min_tokens(self) -> int:
        """Number of tokens before which no token ends the text."""


class TextSoFar:
    """Tokens of the prompt, or the first ones of a decoder with an encoder, and generated tokens.

    Args:
        prompt: Token ids.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens, self.begun = [*prompt], len(prompt)

    @property
    def generated(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - self.begun

    def ends_in(self, tokens: tuple[int, ...]) -> bool:
        """Return whether the text ends in a sequence of tokens."""
        if not tokens:
            return True
        ends = self.tokens[-1:] == [tokens[-1]]  # rarely: no word is compared in full without it
        return ends and tuple(self.tokens[-len(tokens) :]) == tokens


#: Change of logits (vocab,), in place.
Processor: TypeAlias = Callable[[Array, TextSoFar], None]


class LogitsProcessors:
    """All processors of one generation.

    Args:
        settings: Settings of the package or the request.
        sampling: Sampling parameters, with words as token ids.
        prompt: Token ids of the prompt, or first tokens of the decoder.
        source: Token ids of the encoder's text; None for those of the prompt.
        limit: Maximum number of generated tokens.
        ends: Tokens that end the text, which `min_tokens` excludes.
        forces: Whether tokens are forced; a grammar overrides forced tokens.
    """

    def __init__(
        self,
        settings: GenerationSettings,
        sampling: Penalties,
        prompt: Sequence[int],
        *,
        source: Sequence[int] | None = None,
        limit: int | None = None,
        ends: Collection[int] = (),
        forces: bool = True,
    ) -> None:
        self._text = TextSoFar(prompt)
        source = prompt if source is None else source
        self._processors = [
            *_biases(settings, sampling),
            *_penalties(settings, sampling, source),
            *_exclusions(settings, source),
            *_lengths(settings, self._text.begun),
            *(_forced(settings, self._text.begun, limit) if forces else ()),
            *_repairs(settings, self._text.begun),
            *_suppressions(settings, self._text.begun),
            *_of_request(sampling, ends),
        ]

    def __bool__(self) -> bool:
        return bool(self._processors)

    def take(self, token: int) -> None:
        """Append a generated token."""
        self._text.tokens.append(token)

    def __call__(self, logits: Array) -> Array:
        """Return processed logits, with -inf for excluded tokens; the same array without processors.

        Args:
            logits: Logits (vocab,), float32; they are not modified.
        """
        if not self._processors:
            return logits
        scores = logits.copy()
        for process in self._processors:
            process(scores, self._text)
        return scores


def require_token(scores: Array) -> None:
    """Check that a token is left.

    Raises:
        NoTokenError: All tokens are excluded.
    """
    if scores.max() == _INFINITE:
        raise NoTokenError(
            "The sampling parameters and the generation settings of the package exclude every next token; expected at "
            "least one. Change allowed_token_ids, bad_words, min_tokens or the settings."
        )


def known(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """Return the tokens of a vocabulary; others, such as placeholders of images, have no logits."""
    return [token for token in tokens if 0 <= token < vocab_size]


def _known_array(tokens: tuple[int, ...], vocab_size: int) -> Array:
    """Return `known` as an array of int64."""
    return np.array(known(tokens, vocab_size), np.int64)


#: `_known_array` of lists in a package's settings, which may be long, and which all of its requests share.
_known_of_settings = lru_cache(maxsize=4)(_known_array)


def _biases(settings: GenerationSettings, sampling: Penalties) -> Iterator[Processor]:
    for bias in (tuple(((token,), by) for token, by in sampling.logit_bias.items()),
                 settings.sequence_bias):  # fmt: skip
        if bias:
            yield _SequenceBias(bias)


class _SequenceBias:
    """Values added to logits of tokens, some of them after certain tokens alone.

    Args:
        bias: Values by sequence of tokens, whose last one is changed.
    """

    def __init__(self, bias: Iterable[tuple[tuple[int, ...], float]]) -> None:
        bias = [*bias]
        lengths = [len(tokens) for tokens, _ in bias]
        self._always = [(tokens[0], by) for tokens, by in bias if len(tokens) == 1]
        self._after = [(tokens[:-1], tokens[-1], by) for tokens, by in bias if len(tokens) > 1]
        self._after.sort(key=lambda one: lengths.index(len(one[0]) + 1))  # transformers' sums

    def __call__(self, scores: Array, text: TextSoFar) -> None:
        added = defaultdict[int, float](float, self._always)
        for before, token, by in self._after:
            if text.ends_in(before):
                added[token] = float(np.float32(added[token]) + np.float32(by))
        with np.errstate(invalid="ignore"):  # of infinite logits that are excluded
            scores[[*added]] += np.fromiter(added.values(), np.float32, len(added))


def _penalties(
    settings: GenerationSettings, sampling: Penalties, source: Sequence[int]
) -> Iterator[Processor]:
    if settings.encoder_repetition_penalty != 1:
        factor = 1 / settings.encoder_repetition_penalty
        yield lambda scores, _: _penalize(scores, known({*source}, len(scores)), factor)
    if sampling.repetition_penalty != 1:
        yield _RepetitionPenalty(sampling.repetition_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        yield _OccurrencePenalty(sampling.presence_penalty, sampling.frequency_penalty)
    if sampling.dry is not None:
        yield sampling.dry


def _penalize(scores: Array, tokens: Sequence[int], penalty: float) -> None:
    chosen = scores[tokens]
    scores[tokens] = np.where(chosen < 0, chosen * penalty, chosen / penalty)


class _RepetitionPenalty:
    """Penalty for tokens of the text, prompt included."""

    def __init__(self, penalty: float) -> None:
        self._penalty, self._read, self._occurred = penalty, 0, set[int]()

    def __call__(self, scores: Array, text: TextSoFar) -> None:
        self._occurred.update(known(text.tokens[self._read :], len(scores)))
        self._read = len(text.tokens)
        _penalize(scores, [*self._occurred], self._penalty)


class _OccurrencePenalty:
    """Penalties for generated tokens, once and for each occurrence."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency
        self._read, self._counts = 0, defaultdict[int, int](int)

    def __call__(self, scores: Array, text: TextSoFar) -> None:
        for token in text.tokens[max(self._read, text.begun) :]:
            self._counts[token] += 1
        self._read = len(text.tokens)
        if self._counts:
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            scores[[*self._counts]] -= self._presence + self._frequency * counts


def _exclusions(settings: GenerationSettings, source: Sequence[int]) -> Iterator[Processor]:
    if settings.no_repeat_ngram_size:
        yield _Ngrams(settings.no_repeat_ngram_size)
    if settings.encoder_no_repeat_ngram_size:
        yield _Ngrams(settings.encoder_no_repeat_ngram_size, source)
    ends = {(token,) for token in settings.eos_token_id}
    words = [word for word in settings.bad_words_ids if word and word not in ends]
    if words:
        yield _SequenceBias([(word, _INFINITE) for word in words])


class _Ngrams:
    """Tokens that would complete an n-gram again.

    Args:
        size: Number of tokens of an n-gram.
        source: Text whose n-grams are not generated; None for the text so far.
    """

    def __init__(self, size: int, source: Sequence[int] | None = None) -> None:
        self._size, self._source, self._read = size, source, 0
        self._next = defaultdict[tuple[int, ...], set[int]](set)

    def __call__(self, scores: Array, text: TextSoFar) -> None:
        tokens = text.tokens if self._source is None else self._source
        before = self._size - 1
        for end in range(max(self._read, before), len(tokens)):
            self._next[tuple(tokens[end - before : end])].add(tokens[end])
        self._read = len(tokens)
        newest = tuple(text.tokens[len(text.tokens) - before :])
        scores[known(self._next.get(newest, ()), len(scores))] = _INFINITE


def _lengths(settings: GenerationSettings, begun: int) -> Iterator[Processor]:
    least, ends = settings.least(begun), settings.eos_token_id
    if least > 0 and ends:
        yield _Exclusion(ends, lambda text: text.generated < least)


class _Exclusion:
    """Tokens that are excluded under a condition.

    Args:
        tokens: Token ids; those that are not in the vocabulary have no effect.
        applies: Condition; None for always.
        known: Function of the tokens and the vocabulary's size that returns those in it.
    """

    def __init__(
        self,
        tokens: Iterable[int],
        applies: Callable[[TextSoFar], bool] | None = None,
        known: Callable[[tuple[int, ...], int], Array] = _known_array,
    ) -> None:
        self._tokens, self._applies, self._find = tuple(tokens), applies, known
        self._known: Array | None = None

    def __call__(self, scores: Array, text: TextSoFar) -> None:
        if self._applies and not self._applies(text):
            return
        if self._known is None:
            self._known = self._find(self._tokens, len(scores))
        scores[self._known] = _INFINITE


def _forced(settings: GenerationSettings, begun: int, limit: int | None) -> Iterator[Processor]:
    first, last = settings.forced_bos_token_id, settings.forced_eos_token_id
    if first is not None and begun == 1:
        yield lambda scores, text: _force(scores, (first,), not text.generated)
    if last and limit is not None:
        yield lambda scores, text: _force(scores, last, text.generated == limit - 1)


def _force(scores: Array, tokens: Iterable[int], applies: bool) -> None:
    if applies:
        scores[:] = _INFINITE
        scores[[*tokens]] = 0


def _repairs(settings: GenerationSettings, begun: int) -> Iterator[Processor]:
    if settings.remove_invalid_values:
        yield lambda scores, _: np.copyto(
            scores, np.nan_to_num(scores, nan=0.0, posinf=_HIGHEST, neginf=_LOWEST)
        )
    decay, ends = settings.exponential_decay_length_penalty, settings.eos_token_id
    if decay and ends:
        start, factor = decay

        def lengthen(scores: Array, text: TextSoFar) -> None:
            over = text.generated - start
            if over > 0:
                chosen = scores[[*ends]]
                penalty = np.abs(chosen) * np.float32(factor**over - 1)
                scores[[*ends]] = chosen + np.where(np.isfinite(chosen), penalty, 0)

        yield lengthen


def _suppressions(settings: GenerationSettings, begun: int) -> Iterator[Processor]:
    never, not_first = settings.suppress_tokens, settings.begin_suppress_tokens
    if never:
        yield _Exclusion(never, known=_known_of_settings)
    if not_first:
        # After a forced first token, the next one is the first.
        first = int(begun == 1 and settings.forced_bos_token_id is not None)
        yield _Exclusion(not_first, lambda text: text.generated == first, _known_of_settings)


def _of_request(sampling: Penalties, ends: Collection[int]) -> Iterator[Processor]:
    """Yield the exclusions of vLLM's parameters."""
    words = [(tuple(map(int, word)), _INFINITE) for word in sampling.bad_words]
    least, allowed = sampling.min_tokens, sampling.allowed_token_ids
    if words:
        yield _GeneratedWords(words)
    if least:
        yield _Exclusion(ends, lambda text: text.generated < least)
    if allowed is not None:
        others = np.fromiter(allowed, np.int64)

        def restrict(scores: Array, _: TextSoFar) -> None:
            kept = scores[others]
            scores[:] = _INFINITE
            scores[others] = kept

        yield restrict


class _GeneratedWords(_SequenceBias):
    """Excluded words of a request, which are searched in generated tokens alone, as in vLLM."""

    def __call__(self, scores: Array, text: TextSoFar) -> None:
        inside = TextSoFar(())
        inside.tokens = text.tokens[text.begun :]
        super().__call__(scores, inside)
