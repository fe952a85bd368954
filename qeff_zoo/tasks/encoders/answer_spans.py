# SPDX-License-Identifier: Apache-2.0
"""Answers to a question: logits of starts and ends in, spans of the context out.

The pipeline of transformers 4 defines the rules; version 5 has none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.activations import softmax
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import EncodedPair

#: Start and end in a text, in characters.
Span: TypeAlias = tuple[int, int]
#: Number of the context among the texts of a pair.
CONTEXT = 1


@dataclass(frozen=True, kw_only=True)
class ExtractedAnswer:
    """Span of a context that answers a question.

    Args:
        text: Text of the span; "" if the question has no answer.
        start: Start in the context, in characters.
        end: End in the context.
        score: Probability of the start times that of the end; equal texts have the sum of their scores.
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, kw_only=True)
class AnswerRules:
    """Rules by which answers are chosen.

    Args:
        top_k: Maximum number of answers.
        max_answer_len: Maximum number of tokens of an answer.
        impossible: Whether "no answer" is one of the answers, by the score of the first token.
        align_to_words: Whether answers begin and end with whole words, if the tokenizer has words.
    """

    top_k: int
    max_answer_len: int
    impossible: bool
    align_to_words: bool

    @property
    def candidates(self) -> int:
        """Number of spans of a window: some of them may be parts of the same words."""
        return 2 * self.top_k + 10 if self.align_to_words else self.top_k


#: Number of spans of a window whose scores are computed together.
_FEW_SPANS = 1 << 12


def windows_of(pair: EncodedPair, room: int, overlap: int) -> list[EncodedPair]:
    """Return windows over the tokens of a context, each with the whole question and all special tokens.

    Args:
        pair: Tokens of the question and of the context.
        room: Number of context tokens in a window.
        overlap: Number of context tokens that a window shares with the next one; less than `room`.
    """
    context = [place for place, part in enumerate(pair.parts) if part == CONTEXT]
    others = [place for place, part in enumerate(pair.parts) if part != CONTEXT]
    starts = range(0, max(1, len(context) - overlap), room - overlap)
    return [
        replace(pair.at(sorted([*others, *context[start : start + room]])), cut=len(starts) > 1)
        for start in starts
    ]


def answers_of(
    context: str,
    windows: Iterable[tuple[EncodedPair, Array]],
    rules: AnswerRules,
    first: int | None,
) -> list[ExtractedAnswer]:
    """Return the answers in a context, the best first.

    Args:
        context: The context.
        windows: Windows over its tokens, each with its logits, (tokens, 2).
        rules: Rules by which answers are chosen.
        first: Token id of the token that the tokenizer adds before the question, whose score is that of no answer;
            None without one.

    Raises:
        GenerationError: A logit is NaN.
    """
    spans, scores = dict[str, Span](), dict[str, float]()  # by text, in lower case
    missing = float("inf")
    for window, logits in windows:
        inside = np.array([part == CONTEXT for part in window.parts])
        allowed = inside | [
            special and token == first
            for token, special in zip(window.ids, window.special, strict=True)
        ]
        masked = np.where(allowed[:, None], logits[: len(inside)].astype(np.float64), -np.inf)
        shares = softmax(masked.T)  # (2, tokens)
        if np.isnan(shares).any():
            raise GenerationError(
                "The model returns logits that are no numbers (NaN); expected numbers. Build the package again, with "
                "weights of a wider data type."
            )
        missing = min(missing, float(shares[0, 0] * shares[1, 0]))
        (positions,) = np.nonzero(inside)
        words = _words(window) if rules.align_to_words else {}
        starts, ends = shares[:, positions]
        best = _best(starts, ends, rules.candidates, rules.max_answer_len)
        for begun, ended, score in best:
            at, until = _span(window, words, positions[begun], positions[ended])
            text = context[at:until]
            key = text.lower()
            scores[key] = scores.get(key, 0.0) + score
            spans.setdefault(key, (at, until))
    answers = [
        ExtractedAnswer(text=context[at:until], start=at, end=until, score=scores[key])
        for key, (at, until) in spans.items()
    ]
    if rules.impossible:
        answers.append(ExtractedAnswer(text="", start=0, end=0, score=missing))
    return sorted(answers, key=lambda one: -one.score)[: rules.top_k]


def _best(start: Array, end: Array, count: int, longest: int) -> Iterator[tuple[int, int, float]]:
    """Yield the spans with the largest scores: the first token, the last one, and the score.

    Args:
        start: Probability of each token of a context as the start.
        end: Probability of each token as the end.
        count: Maximum number of spans.
        longest: Maximum number of tokens of a span.
    """
    longest = min(longest, len(start))
    if longest * len(start) <= _FEW_SPANS:
        yield from _best_of_few(start, end, count, longest)
        return
    scores, spans = np.zeros(0), np.zeros((0, 2), np.int64)
    for length in range(longest):
        products = start[: len(start) - length] * end[length:]
        least = scores.min() if len(scores) == count else -1.0
        (positions,) = np.nonzero(products > least)
        scores = np.concatenate([scores, products[positions]])
        spans = np.concatenate([spans, np.stack([positions, positions + length], 1)])
        if len(scores) > count:
            kept = np.argpartition(-scores, count - 1)[:count]
            scores, spans = scores[kept], spans[kept]
    for one in np.argsort(-scores, kind="stable"):
        yield int(spans[one, 0]), int(spans[one, 1]), float(scores[one])


def _best_of_few(
    start: Array, end: Array, count: int, longest: int
) -> Iterator[tuple[int, int, float]]:
    """Yield as `_best`, all spans at once; of equal scores the shortest spans."""
    reach = np.concatenate([end, np.zeros(longest - 1)])
    ends = np.lib.stride_tricks.sliding_window_view(reach, len(start))  # (lengths, tokens)
    lengths = np.arange(longest)[:, None]
    inside = np.arange(len(start)) + lengths < len(start)
    scores = np.where(inside, start * ends, -1.0).ravel()
    for one in np.argsort(-scores, kind="stable")[: min(count, int(inside.sum()))].tolist():
        length, first = divmod(one, len(start))
        yield first, first + length, float(scores[one])


def _span(window: EncodedPair, words: Mapping[int, Span], begun: int, ended: int) -> Span:
    """Return the start and end in the context of some tokens, or of their words if all of them have one."""
    first, last = (
        words.get(-1 if one is None else one) for one in (window.words[begun], window.words[ended])
    )
    if first is None or last is None:
        first, last = window.offsets[begun], window.offsets[ended]
    return first[0], last[1]


def _words(window: EncodedPair) -> dict[int, Span]:
    """Return the start and end in the context of every word, as far as the window has it."""
    words: dict[int, Span] = {}
    for part, word, (start, end) in zip(window.parts, window.words, window.offsets, strict=True):
        if part == CONTEXT and word is not None:
            words[word] = words[word][0] if word in words else start, end
    return words
