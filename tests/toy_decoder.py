# SPDX-License-Identifier: Apache-2.0
"""A decoder without a model: what it answers depends on every token that a row's states say came before.

Its answers are exact, so that any token that a scheduler loses, repeats, or leaves in another request's row shows.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qeff_zoo.runtime.decoder import Array, Decoder, Piece
from qeff_zoo.runtime.sizes import DecoderSizes

VOCAB = 13
_GARBAGE, _PRIME = -7, 1_000_003


class ToyDecoder(Decoder):
    """Rows that remember their tokens twice: position by position, and in one number that is not per position.

    Args:
        rows: Requests at a time.
        ctx_len: Positions.
        prefill_seq_len: Prompt tokens of one call.
    """

    def __init__(self, rows: int, ctx_len: int, prefill_seq_len: int) -> None:
        self.sizes = DecoderSizes(
            prefill_seq_len=prefill_seq_len,
            ctx_len=ctx_len,
            batch_size=rows,
            full_batch_size=None,
            comp_ctx_lengths_prefill=(prefill_seq_len, ctx_len),
            comp_ctx_lengths_decode=(3, ctx_len // 2, ctx_len),
        )
        self.vocab_size = VOCAB
        self.states = {
            "past_key.0": np.full((rows, 1, ctx_len, 1), _GARBAGE, np.int64),
            "recurrent_state.1": np.full((rows, 1), _GARBAGE, np.int64),
        }
        self._growing = frozenset({"past_key.0"})
        self._slides = False
        #: Rows and width of every call.
        self.calls: list[tuple[list[int], int]] = []

    def _call(
        self, pieces: Mapping[int, Piece], rows: Sequence[int], width: int, seen: int
    ) -> dict[int, Array]:
        assert list(rows) == list(range(rows[0], rows[0] + len(rows)))
        assert width == 1 or len({pieces[row].start for row in rows}) == 1
        self.calls.append((list(rows), width))
        past, recurrent = self.states.values()
        logits = {}
        for row in rows:
            tokens, start = pieces[row].tokens, pieces[row].start
            stop = start + len(tokens)
            assert 0 < len(tokens) <= width
            assert start + width <= self.sizes.ctx_len
            past[row, 0, start : start + width, 0] = _GARBAGE  # as padding leaves it
            past[row, 0, start:stop, 0] = tokens
            number = int(recurrent[row, 0]) if start else 0
            for token in tokens:
                number = fold(number, token)
            recurrent[row, 0] = number
            logits[row] = answer_to(past[row, 0, :seen, 0][:stop].tolist(), number)
        return logits


def fold(number: int, token: int) -> int:
    return (number * 31 + token + 1) % _PRIME


def answer_to(tokens: Sequence[int], number: int) -> Array:
    """Return logits (vocab,) that follow from all tokens and from the number that they were folded into."""
    seed = number
    for token in tokens:
        seed = fold(seed, token + 10)
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32)


def greedy_answer(prompt: Sequence[int], limit: int, eos: int) -> list[int]:
    """Return what a request gets that is served alone and without any cache."""
    tokens, number = list(prompt), 0
    for token in tokens:
        number = fold(number, token)
    while True:
        token = int(answer_to(tokens, number).argmax())
        tokens.append(token)
        number = fold(number, token)
        if token == eos or len(tokens) - len(prompt) == limit:
            return tokens[len(prompt) :]
