# SPDX-License-Identifier: Apache-2.0
"""Drafts of a decoder layer: a package's program `draft` with its KV cache, which takes the model's hidden states.

The layer runs each token with the model's hidden state of the previous one. It runs a draft token with its
approximation of that state; once the model has checked the draft, accepted tokens run again with the model's hidden
states, and overwrite the states of the draft. So nothing is restored except a sliding window, which drops an entry
for each draft token.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.sampling import Drawn
from qeff_zoo.runtime.engine.speculation.costs import Costs, behind, fastest
from qeff_zoo.runtime.engine.speculation.draft_model import Guessing
from qeff_zoo.runtime.engine.speculation.rows import Rows
from qeff_zoo.runtime.program import Array, Program


class Layer:
    """Program `draft` of a package, with the owners of its batch slots.

    Args:
        program: Opened program.
    """

    def __init__(self, program: Program) -> None:
        self.decoder = Decoder(program)
        self.size = int(program.inputs["hidden_states"].shape[2])
        self.rows = Rows(self.decoder.sizes.rows)

    def run(
        self, row: int, tokens: Sequence[int], start: int, hidden: Array
    ) -> tuple[Array, Array]:
        """Run tokens; return the logits (vocab,) after the last, and its approximate hidden state, (1, size)."""
        length, logits = self.decoder.sizes.prefill_seq_len, np.empty(0, np.float32)
        for at in range(0, len(tokens), length):
            stop = at + length
            piece = Piece(tokens[at:stop], start + at, hidden=hidden[at:stop])
            logits = self.decoder.prefill({row: piece})[row]
        return logits, self.decoder.hidden[row][-1:]

    def measure(self) -> float:
        """Return the seconds per token; states are lost."""
        hidden = np.zeros((1, self.size), np.float32)
        start = behind(self.decoder.sizes.ctx_len)
        return fastest(lambda: self.run(0, [0], start, hidden))[0]


class LayerDrafter(Guessing):
    """Drafter of one request by a layer; a `Reader`.

    Args:
        layer: Draft layer, shared with other requests.
        costs: Costs of calls, as for `Guessing`.
    """

    def __init__(self, layer: Layer, costs: Costs) -> None:
        super().__init__(costs)
        self._layer = layer
        self._first = 0  # token of the first hidden state in the layer
        self._at = 0  # token of the next hidden state to run
        self._received: list[Array] = []  # hidden states from that token on, up to `_end`
        self._end = 0
        self._held: Mapping[str, Array] = {}  # sliding window before the last draft tokens

    def read(self, start: int, hidden: Array) -> None:
        """Store the draft inputs; those of tokens that the layer has run are known, even if they are repeated."""
        hidden, start = hidden[max(0, self._at - start) :], max(self._at, start)
        if start > self._end:  # no inputs in between, as after a cached prefix
            self._first = self._at = self._end = start
            self._received = []
        while self._end > start:
            last = self._received.pop()
            self._end -= len(last)
            if self._end < start:
                self._received.append(last[: start - self._end])
                self._end = start
        self._received.append(hidden)
        self._end += len(hidden)

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int | Drawn]:
        """Return a draft of the next tokens."""
        known = self._at < len(tokens) - 1 <= self._end
        return super().draft(tokens, most, rows) if known else []

    def guess(self, tokens: Sequence[int], count: int) -> list[int | Drawn]:
        """Return a draft of the next tokens."""
        return [int(logit.argmax()) for logit in self.draft_logits(tokens, count)]

    def draft_logits(
        self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()
    ) -> list[Array]:
        """Run the tokens that have not run, then draft one token after the other.

        Args:
            tokens: All tokens so far; the hidden states of all but the newest are known.
            count: Number of tokens to draft.
            drafted: Draft tokens that override the most likely ones, from the first on.

        Returns:
            Logits (vocab,) of each draft token.
        """
        row, is_own = self._layer.rows.of(self)
        decoder = self._layer.decoder
        if not is_own:
            self._first = self._at
        elif self._held:
            decoder.restore(row, self._at - self._first, self._held, latest=True)
        known, stop = np.concatenate(self._received), len(tokens) - 1 - self._at
        logits, state = self._layer.run(
            row, tokens[self._at + 1 :], self._at - self._first, known[:stop]
        )
        self._at, self._received = self._at + stop, [known[stop:]]
        at, rows = self._at - self._first, [logits]
        self._held = {} if count == 1 or decoder.only_grows else decoder.save(row, at, at)
        while len(rows) < count:
            index = len(rows) - 1
            token = drafted[index] if index < len(drafted) else int(logits.argmax())
            logits, state = self._layer.run(row, [token], at + index, state)
            rows.append(logits)
        return rows
