# SPDX-License-Identifier: Apache-2.0
"""Word-level timestamps: weights of cross-attention in, times of tokens and of words out.

The rules are those of transformers: some heads follow the audio, so that the monotonic path through their weights with
the largest sum has the start of each token (dynamic time warping).
"""

import string
from collections.abc import Callable, Sequence

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.speech.speech_results import TimedText
from qeff_zoo.tasks.speech.speech_tokens import TICK

#: Codes of languages that put no spaces between words.
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_OPENING, _CLOSING = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
_UNKNOWN = "\ufffd"  # replaces an incomplete character
#: Steps of a path: to the next row and column, or within a column, or within a row.
_DIAGONAL, _SAME_COLUMN, _SAME_ROW = 0, 1, 2
_DIGITS = 2  # of seconds


def times_of(weights: Array, width: int) -> list[float]:
    """Return the start of each token, in seconds from the beginning of the window.

    Args:
        weights: Cross-attention weights (heads, tokens, source), from which each token is predicted.
        width: Width of the median filter over the audio.
    """
    mean, deviation = weights.mean(1, keepdims=True), weights.std(1, keepdims=True)
    # Equal weights of all tokens, as of a single one, have no information: they become 0.
    normalized = np.divide(
        weights - mean, deviation, out=np.zeros_like(weights), where=deviation > 0
    )
    rows, columns = _warp(-_smooth(normalized, width).mean(0))
    begins = np.diff(rows, prepend=-1) > 0
    return [float(column) * TICK for column in columns[begins]]


def _smooth(values: Array, width: int) -> Array:
    """Return medians over `width` neighbours along the last axis, with mirrored ends."""
    half = width // 2
    if values.shape[-1] <= half:
        return values
    padded = np.pad(values, [*[(0, 0)] * (values.ndim - 1), (half, half)], mode="reflect")
    near = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    return np.partition(near, half, axis=-1)[..., half]


def _warp(costs: Array) -> tuple[Array, Array]:
    """Return rows and columns of the cheapest path from the first corner to the last, by dynamic time warping.

    All cells of a diagonal are computed at once: each depends only on the two previous diagonals.

    Args:
        costs: (rows, columns).
    """
    rows, columns = costs.shape
    # By row and diagonal, with a border; as in transformers, totals in float32 of sums in float64.
    total = np.full((rows + 1, rows + columns + 1), np.inf, np.float32)
    step = np.zeros((rows + 1, rows + columns + 1), np.int8)
    total[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        both, up, left = (
            total[row - 1, diagonal - 2],
            total[row - 1, diagonal - 1],
            total[row, diagonal - 1],
        )
        is_both, is_up = (both < up) & (both < left), (up < both) & (up < left)
        least = np.where(is_both, both, np.where(is_up, up, left))
        total[row, diagonal] = costs[row - 1, diagonal - row - 1] + least.astype(np.float64)
        step[row, diagonal] = np.where(is_both, _DIAGONAL, np.where(is_up, _SAME_COLUMN, _SAME_ROW))
    return _path(step, rows, columns)


def _path(step: Array, row: int, column: int) -> tuple[Array, Array]:
    """Return rows and columns of a path, which is followed back from its last corner.

    Args:
        step: Last step to each cell, (rows, diagonals).
        row: Number of rows.
        column: Number of columns.
    """
    steps = []
    while row > 0 or column > 0:
        steps.append((row - 1, column - 1))
        taken = step[row, row + column]
        if row == 0 or (column > 0 and taken == _SAME_ROW):
            column -= 1
        elif column == 0 or taken == _SAME_COLUMN:
            row -= 1
        else:
            row, column = row - 1, column - 1
    path = np.array(steps[::-1])
    return path[:, 0], path[:, 1]


def words_of(
    tokens: Sequence[int],
    spans: Sequence[tuple[float, float]],
    decode: Callable[[Sequence[int]], str],
    language: str | None,
) -> list[TimedText]:
    """Join tokens to words.

    Args:
        tokens: Tokens of the text.
        spans: Start and end of each token.
        decode: Function from tokens to text.
        language: Code of the language; None for one with spaces.
    """
    pieces = _characters(tokens, decode)
    parts = pieces if language in UNSPACED else _spaced(pieces)
    words, index = [], 0
    for text, count in _punctuated(parts):
        word_spans = spans[index : index + count]
        index += count
        words.append(TimedText(text=text.strip(), start=word_spans[0][0], end=word_spans[-1][1]))
    return [word for word in words if word.text]


def _characters(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[tuple[str, int]]:
    """Cut tokens at ends of characters; return the text and number of tokens of each piece."""
    whole = decode(tokens)
    pieces: list[tuple[str, int]] = []
    begun, offset = 0, 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[begun:end])
        broken = text.find(_UNKNOWN)
        at = offset + broken
        if broken < 0 or at >= len(whole) or whole[at] == _UNKNOWN:
            pieces.append((text, end - begun))
            begun, offset = end, offset + len(text)
    return pieces


def _spaced(pieces: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Join pieces that neither follow a space nor are punctuation."""
    joined: list[tuple[str, int]] = []
    for text, count in pieces:
        if text.startswith(" ") or text.strip() in string.punctuation or not joined:
            joined.append((text, count))
        else:
            before, tokens = joined[-1]
            joined[-1] = before + text, tokens + count
    return joined


def _punctuated(words: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Join punctuation to the word that it opens or closes."""
    opened: list[tuple[str, int]] = []
    for text, count in reversed(words):
        if opened and text.startswith(" ") and text.strip() in _OPENING:
            after, tokens = opened[-1]
            opened[-1] = text + after, tokens + count
        else:
            opened.append((text, count))
    joined: list[tuple[str, int]] = []
    for text, count in reversed(opened):
        if joined and not joined[-1][0].endswith(" ") and text in _CLOSING:
            before, tokens = joined[-1]
            joined[-1] = before + text, tokens + count
        else:
            joined.append((text, count))
    return joined
