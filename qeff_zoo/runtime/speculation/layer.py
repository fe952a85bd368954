# SPDX-License-Identifier: Apache-2.0
"""Drafts of a decoder layer: a package's program `draft`, with a cache of its own, which reads the model's states.

It runs each token with the hidden state that the model had of the one before. A token that it drafts it runs with what
it made of that one itself; once the model has checked the draft, tokens that count run again with the model's states,
over what was written for the guesses. So nothing has to be put back.
"""

import time
from collections.abc import Sequence
from weakref import ref

import numpy as np

from qeff_zoo.runtime.decoder import Decoder, Piece
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sampling import Drawn
from qeff_zoo.runtime.speculation.costs import Costs
from qeff_zoo.runtime.speculation.draft_model import Guessing

_ROUNDS = 3


class Layer:
    """The program `draft` of a package, and whose tokens its rows have.

    Args:
        program: Opened.
    """

    def __init__(self, program: Program) -> None:
        self.decoder = Decoder(program)
        self.size = int(program.inputs["hidden_states"].shape[2])
        #: By row, whoever used it, those longest ago first; nobody is kept here, so that a drafter's end frees its row.
        self._users: dict[int, ref[object]] = {}

    def row_of(self, user: object) -> tuple[int, bool]:
        """Return a user's row, and whether it is still the user's: if not, nothing in it is of use."""
        known = next((row for row, one in self._users.items() if one() is user), None)
        free = (row for row in range(self.decoder.sizes.rows) if row not in self._users)
        gone = (row for row, one in self._users.items() if one() is None)
        row = next((one for one in (known, *free, *gone) if one is not None), None)
        if row is None:
            row = next(iter(self._users))
        self._users.pop(row, None)
        self._users[row] = ref(user)
        return row, row == known

    def run(
        self, row: int, tokens: Sequence[int], start: int, hidden: Array
    ) -> tuple[Array, Array]:
        """Run tokens; return the logits (vocab,) after the last, and what stands for its hidden state, (1, size)."""
        length, logits = self.decoder.sizes.prefill_seq_len, np.empty(0, np.float32)
        for at in range(0, len(tokens), length):
            stop = at + length
            piece = Piece(tokens[at:stop], start + at, hidden=hidden[at:stop])
            logits = self.decoder.prefill({row: piece})[row]
        return logits, self.decoder.hidden[row][-1:]

    def measure(self) -> float:
        """Return the seconds of a token; what rows retain is lost."""
        least, hidden = float("inf"), np.zeros((1, self.size), np.float32)
        start = min(64, self.decoder.sizes.ctx_len - 1)
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            self.run(0, [0], start, hidden)
            least = min(least, time.perf_counter() - begun)
        return least


class LayerDrafter(Guessing):
    """Drafts for one request by a layer; a `Reader`.

    Args:
        layer: Shared with other requests.
        costs: As for `Guessing`.
    """

    def __init__(self, layer: Layer, costs: Costs) -> None:
        super().__init__(costs)
        self._layer = layer
        self._first = 0  # token whose hidden state is the first that the layer has
        self._at = 0  # token whose hidden state is the next that it has to run
        self._told: list[
            Array
        ] = []  # hidden states of that one and those after it, to before `_end`
        self._end = 0

    def read(self, start: int, hidden: Array) -> None:
        """Keep what is drafted from; of tokens that have run it is known, even if the model runs them again."""
        hidden, start = hidden[max(0, self._at - start) :], max(self._at, start)
        if (
            start > self._end
        ):  # of those between nothing was told, as of the beginning of a known prompt
            self._first = self._at = self._end = start
            self._told = []
        while self._end > start:
            last = self._told.pop()
            self._end -= len(last)
            if self._end < start:
                self._told.append(last[: start - self._end])
                self._end = start
        self._told.append(hidden)
        self._end += len(hidden)

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int | Drawn]:
        """Guess what follows."""
        known = self._at < len(tokens) - 1 <= self._end
        return super().draft(tokens, most, rows) if known else []

    def guess(self, tokens: Sequence[int], count: int) -> list[int | Drawn]:
        """Say how tokens go on."""
        return [int(one.argmax()) for one in self.say(tokens, count)]

    def say(self, tokens: Sequence[int], count: int, told: Sequence[int] = ()) -> list[Array]:
        """Run what has not run, then one token after the other.

        Args:
            tokens: All so far; the hidden states of all but the newest are known.
            count: Tokens to say.
            told: Which they are, as far as they are to be others than the likeliest.

        Returns:
            Logits (vocab,) of each.
        """
        row, is_own = self._layer.row_of(self)
        if not is_own:
            self._first = self._at
        known, stop = np.concatenate(self._told), len(tokens) - 1 - self._at
        logits, state = self._layer.run(
            row, tokens[self._at + 1 :], self._at - self._first, known[:stop]
        )
        self._at, self._told = self._at + stop, [known[stop:]]
        found = [logits]
        while len(found) < count:
            place = len(found) - 1
            token = told[place] if place < len(told) else int(logits.argmax())
            at = self._at - self._first + place
            logits, state = self._layer.run(row, [token], at, state)
            found.append(logits)
        return found
