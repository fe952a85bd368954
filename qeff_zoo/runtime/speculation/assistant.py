# SPDX-License-Identifier: Apache-2.0
"""Drafts of an assistant: a package's program `assistant`, which reads the states that the model itself retains.

It is told of a place in a text, and says one token after the other from there. It retains nothing, and what it reads is
never written for a guess: so there is nothing to run before it drafts, and nothing to put back.
"""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sampling import Drawn
from qeff_zoo.runtime.speculation.costs import Costs, behind, fastest
from qeff_zoo.runtime.speculation.draft_model import Guessing


class Assistant:
    """The program `assistant` of a package.

    Args:
        program: Opened.
        decoder: Decoder of the target model, whose states it reads.
    """

    def __init__(self, program: Program, decoder: Decoder) -> None:
        self._program, self._decoder = program, decoder
        self._read = [name for name in program.inputs if name in decoder.states]
        self._size = int(program.inputs["hidden_states"].shape[2])

    def run(self, row: int, token: int, position: int, hidden: Array) -> tuple[Array, Array]:
        """Run a token; return the logits (vocab,) after it, and what stands for its hidden state, (size,).

        Args:
            row: Row of the target model, whose states before the position are read.
            token: The newest, or one that was drafted.
            position: Position of the newest.
            hidden: (size,), of the token before.
        """
        states = {name: self._decoder.states[name][row : row + 1] for name in self._read}
        found = self._program.run(
            {
                "input_ids": np.array([[token]]),
                "hidden_states": hidden.reshape(1, 1, self._size),
                "position_ids": np.array([[position]]),
                **states,
            }
        )
        return found["logits"][0, 0], found["drafted_states"][0, 0]

    def measure(self) -> float:
        """Return the seconds of a token."""
        hidden = np.zeros(self._size, np.float32)
        position = behind(self._decoder.sizes.ctx_len)
        return fastest(lambda: self.run(0, 0, position, hidden))[0]


class AssistantDrafter(Guessing):
    """Drafts for one request by an assistant; a `Reader`, and `Sharing`.

    Args:
        assistant: Shared with other requests.
        costs: See `Guessing`.
    """

    def __init__(self, assistant: Assistant, costs: Costs) -> None:
        super().__init__(costs)
        self._assistant, self._row = assistant, 0
        self._start, self._hidden = 0, np.empty((0, 0), np.float32)

    def read(self, start: int, hidden: Array) -> None:
        """Keep what is drafted from."""
        self._start, self._hidden = start, hidden

    def sees(self, row: int) -> None:
        """Take the row whose states are read."""
        self._row = row

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int | Drawn]:
        """Guess what follows."""
        known = 0 <= len(tokens) - 2 - self._start < len(self._hidden)
        return super().draft(tokens, most, rows) if known else []

    def guess(self, tokens: Sequence[int], count: int) -> list[int | Drawn]:
        """Draft the next tokens."""
        return [int(one.argmax()) for one in self.say(tokens, count)]

    def say(self, tokens: Sequence[int], count: int, told: Sequence[int] = ()) -> list[Array]:
        """Draft one token after the other.

        Args:
            tokens: All so far; the hidden state of the one before the newest is known.
            count: Tokens to say.
            told: Which they are, as far as they are to be others than the likeliest.

        Returns:
            Logits (vocab,) of each.
        """
        position, token = len(tokens) - 1, tokens[-1]
        state, found = self._hidden[position - 1 - self._start], list[Array]()
        while True:
            logits, state = self._assistant.run(self._row, token, position, state)
            found.append(logits)
            if len(found) == count:
                return found
            place = len(found) - 1
            token = told[place] if place < len(told) else int(logits.argmax())
