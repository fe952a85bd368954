# SPDX-License-Identifier: Apache-2.0
"""Drafts of an assistant: a package's program `assistant`, which reads the states of the target model.

It starts at a position of a text, and drafts one token after the other. It retains nothing, and the states that it
reads are never written for drafts: nothing needs to run before it drafts, and nothing needs to be restored.
"""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.sampling import Drawn
from qeff_zoo.runtime.engine.speculation.costs import Costs, behind, fastest
from qeff_zoo.runtime.engine.speculation.draft_model import Guessing
from qeff_zoo.runtime.program import Array, Program


class Assistant:
    """Program `assistant` of a package.

    Args:
        program: Opened program.
        decoder: Decoder of the target model, whose states it reads.
    """

    def __init__(self, program: Program, decoder: Decoder) -> None:
        self._program, self._decoder = program, decoder
        self._read = [name for name in program.inputs if name in decoder.states]
        self._size = int(program.inputs["hidden_states"].shape[2])

    def run(self, row: int, token: int, position: int, hidden: Array) -> tuple[Array, Array]:
        """Run a token; return the logits (vocab,) after it, and its approximate hidden state, (size,).

        Args:
            row: Batch slot of the target model, whose states before the position are read.
            token: Newest token, or a draft token.
            position: Position of the newest token.
            hidden: Hidden state (size,) of the previous token.
        """
        states = {name: self._decoder.states[name][row : row + 1] for name in self._read}
        outputs = self._program.run(
            {
                "input_ids": np.array([[token]]),
                "hidden_states": hidden.reshape(1, 1, self._size),
                "position_ids": np.array([[position]]),
                **states,
            }
        )
        return outputs["logits"][0, 0], outputs["drafted_states"][0, 0]

    def measure(self) -> float:
        """Return the seconds per token."""
        hidden = np.zeros(self._size, np.float32)
        position = behind(self._decoder.sizes.ctx_len)
        return fastest(lambda: self.run(0, 0, position, hidden))[0]


class AssistantDrafter(Guessing):
    """Drafter of one request by an assistant; a `Reader`, and `Sharing`.

    Args:
        assistant: Assistant, shared with other requests.
        costs: Costs of calls, as for `Guessing`.
    """

    def __init__(self, assistant: Assistant, costs: Costs) -> None:
        super().__init__(costs)
        self._assistant, self._row = assistant, 0
        self._start, self._hidden = 0, np.empty((0, 0), np.float32)

    def read(self, start: int, hidden: Array) -> None:
        """Store the draft inputs."""
        self._start, self._hidden = start, hidden

    def set_slot(self, row: int) -> None:
        """Set the batch slot whose states are read."""
        self._row = row

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int | Drawn]:
        """Return a draft of the next tokens."""
        known = 0 <= len(tokens) - 2 - self._start < len(self._hidden)
        return super().draft(tokens, most, rows) if known else []

    def guess(self, tokens: Sequence[int], count: int) -> list[int | Drawn]:
        """Return a draft of the next tokens."""
        return [int(logit.argmax()) for logit in self.draft_logits(tokens, count)]

    def draft_logits(
        self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()
    ) -> list[Array]:
        """Draft one token after the other.

        Args:
            tokens: All tokens so far; the hidden state of the one before the newest is known.
            count: Number of tokens to draft.
            drafted: Draft tokens that override the most likely ones, from the first on.

        Returns:
            Logits (vocab,) of each draft token.
        """
        position, token = len(tokens) - 1, tokens[-1]
        state, found = self._hidden[position - 1 - self._start], list[Array]()
        while True:
            logits, state = self._assistant.run(self._row, token, position, state)
            found.append(logits)
            if len(found) == count:
                return found
            index = len(found) - 1
            token = drafted[index] if index < len(drafted) else int(logits.argmax())
