# SPDX-License-Identifier: Apache-2.0
"""A decoder without a model: what it answers depends on every token that a row's states say came before.

Its answers are exact, so that any token that a scheduler loses, repeats, or leaves in another request's row shows.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from qeff_zoo.graph.states import State
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.program import Array, Memory, Tensor
from qeff_zoo.targets.ort.session import _runs

VOCAB = 13
_GARBAGE, _PRIME = -7, 1_000_003


class ToyProgram:
    """Rows that remember their tokens twice: position by position, and in one number that is not per position.

    Args:
        rows: Requests at a time.
        ctx_len: Positions.
        prefill_seq_len: Prompt tokens of one call.
        split: See `qeff_zoo.runtime.program.SplitsPrompts`.
    """

    inputs = dict.fromkeys(
        ("input_ids", "position_ids", "comp_ctx_lengths", "num_logits_to_keep"),
        Tensor(dtype=np.dtype(np.int64), shape=()),
    )
    outputs: ClassVar = {
        "logits": Tensor(
            dtype=np.dtype(np.float32), shape=("batch_size", "num_logits_to_keep", VOCAB)
        )
    }

    def __init__(self, rows: int, ctx_len: int, prefill_seq_len: int, split: int = 0) -> None:
        self.split = split
        widths = {"Prefill": (prefill_seq_len, (prefill_seq_len, ctx_len))}
        widths["Decode"] = (1, (3, ctx_len // 2, ctx_len))
        sizes = {"batch_size": rows, "ctx_len": ctx_len}
        self.specializations = [
            {
                "name": f"{kind}_{number}",
                "symbols": {**sizes, "seq_len": width, "comp_ctx_lengths": length},
            }
            for kind, (width, lengths) in widths.items()
            for number, length in enumerate(lengths)
        ]
        self.ctx_len = ctx_len
        self.states = [
            State(name="past_key.0", kind="growing", layer=0, axes=("batch_size", 1, "ctx_len", 1)),
            State(name="recurrent_state.1", kind="recurrent", layer=1, axes=("batch_size", 1)),
        ]
        self.memory = Memory(
            {
                "past_key.0": np.full((rows, 1, ctx_len, 1), _GARBAGE, np.int64),
                "recurrent_state.1": np.full((rows, 1), _GARBAGE, np.int64),
            }
        )
        #: Rows and width of every call.
        self.calls: list[tuple[list[int], int]] = []

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        begin = [row for row in sorted(starts) if not prefill or starts[row] == 0]
        return [*_runs(begin), *([row] for row in starts if row not in begin)]

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        input_ids, position_ids = inputs["input_ids"], inputs["position_ids"]
        width, recorded = input_ids.shape[1], len(inputs["comp_ctx_lengths"])
        kept = len(inputs["num_logits_to_keep"])
        assert list(rows) == list(range(rows[0], rows[0] + len(rows)))
        assert width == 1 or len(set(position_ids[:, 0])) == 1
        self.calls.append((list(rows), width))
        past, recurrent = self.memory.values()
        logits = []
        for place, row in enumerate(rows):
            tokens = input_ids[place][position_ids[place] >= 0].tolist()
            start = int(position_ids[place, 0])
            stop = start + len(tokens)
            assert 0 < len(tokens) <= width
            assert start + width <= self.ctx_len
            past[row, 0, start : start + width, 0] = _GARBAGE  # as padding leaves it
            past[row, 0, start:stop, 0] = tokens
            number = int(recurrent[row, 0]) if start else 0
            found = np.full((kept, VOCAB), np.nan, np.float32)
            first = max(0, len(tokens) - kept)
            for place, token in enumerate(tokens):
                number = fold(number, token)
                if place >= first:
                    before = past[row, 0, :recorded, 0][: start + place + 1].tolist()
                    found[place - first] = answer_to(before, number)
            recurrent[row, 0] = number
            logits.append(found)
        return {"logits": np.stack(logits)}


class ToyDecoder(Decoder):
    """Plans the calls of a `ToyProgram`."""

    def __init__(self, rows: int, ctx_len: int, prefill_seq_len: int, split: int = 0) -> None:
        super().__init__(ToyProgram(rows, ctx_len, prefill_seq_len, split))

    @property
    def calls(self) -> list[tuple[list[int], int]]:
        """Rows and width of every call."""
        return self.program.calls


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
