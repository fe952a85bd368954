# SPDX-License-Identifier: Apache-2.0
"""Draft heads: drafts from the hidden state of the token before the newest.

Heads are a package's program `heads`, or part of the language model's program.
"""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.runtime.decoding.sampling import Drawn
from qeff_zoo.runtime.engine.speculation.costs import Costs, fastest
from qeff_zoo.runtime.engine.speculation.draft_model import Guessing
from qeff_zoo.runtime.program import Array, Program

_LIKELIEST = -1


class Heads:
    """Program `heads` of a package.

    Args:
        program: Opened program.
    """

    def __init__(self, program: Program) -> None:
        self._program, shape = program, program.outputs["logits"].shape
        #: Number of tokens that a call drafts.
        self.count = int(shape[1])
        self._reads_tokens = "input_ids" in program.inputs

    def logits(self, hidden: Array, tokens: Sequence[Sequence[int]]) -> Array:
        """Run one call.

        Args:
            hidden: Hidden states (rows, size) of the tokens before the newest.
            tokens: Newest token of each row, and the draft tokens after it that override the most likely ones.

        Returns:
            Logits (rows, count, vocab) of the tokens after the newest.
        """
        inputs = {"hidden_states": hidden}
        if self._reads_tokens:
            input_ids = inputs["input_ids"] = np.full(
                (len(hidden), self.count), _LIKELIEST, np.int64
            )
            for row, known in enumerate(tokens):
                input_ids[row, : len(known)] = known[: self.count]
        logits: Array = self._program.run(inputs)["logits"]
        return logits

    def measure(self) -> float:
        """Return the seconds of a call."""
        size = int(self._program.inputs["hidden_states"].shape[1])
        hidden = np.zeros((1, size), np.float32)
        return fastest(lambda: self.logits(hidden, [[0]]))[0]


class HeadsWithin:
    """Draft heads within the language model's program, which returns their logits with its own.

    Args:
        count: Number of heads.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def logits(self, hidden: Array, tokens: Sequence[Sequence[int]]) -> Array:
        """Return the logits that were read: (rows, count, vocab), of the tokens after the newest."""
        return hidden

    def measure(self) -> float:
        """Return the seconds of a call, which are 0."""
        return 0.0


class HeadsDrafter(Guessing):
    """Drafter of one request by draft heads; a `Reader`.

    Args:
        heads: Draft heads, shared with other requests.
        costs: Costs of calls, as for `Guessing`.
    """

    def __init__(self, heads: Heads | HeadsWithin, costs: Costs) -> None:
        super().__init__(costs)
        self._heads = heads
        self._start, self._hidden = 0, np.empty((0, 0), np.float32)

    def read(self, start: int, hidden: Array) -> None:
        """Store the draft inputs."""
        self._start, self._hidden = start, hidden

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int | Drawn]:
        """Return a draft of the next tokens, at most one per head."""
        known = 0 <= len(tokens) - 2 - self._start < len(self._hidden)
        return super().draft(tokens, min(most, self._heads.count), rows) if known else []

    def guess(self, tokens: Sequence[int], count: int) -> list[int | Drawn]:
        """Return a draft of the next tokens."""
        before = self._hidden[len(tokens) - 2 - self._start][None]
        logits = self._heads.logits(before, [tokens[-1:]])[0, :count]
        return [int(token) for token in logits.argmax(-1)]
