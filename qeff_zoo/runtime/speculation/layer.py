# SPDX-License-Identifier: Apache-2.0
"""Drafts of a decoder layer: a package's program `draft`, with a cache of its own, which reads the model's states.

It runs each token with the hidden state that the model had of the one before. A token that it drafts it runs with what
it made of that one itself; once the model has checked the draft, tokens that count run again with the model's states,
over what was written for the guesses. So nothing has to be put back, but a window, which forgets for each guess.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qeff_zoo.runtime.decoder import Decoder, Piece
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sampling import Drawn
from qeff_zoo.runtime.speculation.costs import Costs, behind, fastest
from qeff_zoo.runtime.speculation.draft_model import Guessing
from qeff_zoo.runtime.speculation.rows import Rows


class Layer:
    """The program `draft` of a package, and whose tokens its rows have.

    Args:
        program: Opened.
    """

    def __init__(self, program: Program) -> None:
        self.decoder = Decoder(program)
        self.size = int(program.inputs["hidden_states"].shape[2])
        self.rows = Rows(self.decoder.sizes.rows)

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
        hidden = np.zeros((1, self.size), np.float32)
        start = behind(self.decoder.sizes.ctx_len)
        return fastest(lambda: self.run(0, [0], start, hidden))[0]


class LayerDrafter(Guessing):
    """Drafts for one request by a layer; a `Reader`.

    Args:
        layer: Shared with other requests.
        costs: See `Guessing`.
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
        self._held: Mapping[str, Array] = {}  # of a window before the last guesses

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
        """Draft the next tokens."""
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
        row, is_own = self._layer.rows.of(self)
        decoder = self._layer.decoder
        if not is_own:
            self._first = self._at
        elif self._held:
            decoder.restore(row, self._at - self._first, self._held, latest=True)
        known, stop = np.concatenate(self._told), len(tokens) - 1 - self._at
        logits, state = self._layer.run(
            row, tokens[self._at + 1 :], self._at - self._first, known[:stop]
        )
        self._at, self._told = self._at + stop, [known[stop:]]
        at, found = self._at - self._first, [logits]
        self._held = {} if count == 1 or decoder.only_grows else decoder.save(row, at, at)
        while len(found) < count:
            place = len(found) - 1
            token = told[place] if place < len(told) else int(logits.argmax())
            logits, state = self._layer.run(row, [token], at + place, state)
            found.append(logits)
        return found
