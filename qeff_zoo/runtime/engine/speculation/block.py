# SPDX-License-Identifier: Apache-2.0
"""Drafts of a block drafter (DFlash): a package's program `draft` that drafts all tokens in one call.

The program's KV cache has the model's hidden states of all tokens before the newest one. A call appends those of newly
accepted tokens, then runs a block: the newest token and mask tokens, which attend to each other. The next call
overwrites the block, so nothing is restored.
"""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.checkpoint.draft_heads.dflash import CONTEXT_ID, MASK_ID
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.sampling import Drawn
from qeff_zoo.runtime.engine.speculation.costs import Costs, behind, fastest
from qeff_zoo.runtime.engine.speculation.layer import Layer, LayerDrafter
from qeff_zoo.runtime.program import Array, Program


class Block(Layer):
    """Program `draft` of a package that drafts blocks, with the owners of its batch slots.

    Args:
        program: Opened program.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        #: Number of tokens that a call drafts.
        self.count = int(program.outputs["logits"].shape[1])

    def run_block(self, row: int, hidden: Array, start: int, newest: int) -> Array:
        """Run hidden states of the model, then a block behind them.

        Args:
            row: Batch slot.
            hidden: Hidden states (tokens, size) of the tokens before the newest that have not run.
            start: Position of the first of them.
            newest: Newest token.

        Returns:
            Logits (count, vocab) of the tokens after the newest.
        """
        length = self.decoder.sizes.prefill_seq_len
        while len(hidden) > length:
            self.decoder.prefill({row: Piece([CONTEXT_ID] * length, start, hidden=hidden[:length])})
            hidden, start = hidden[length:], start + length
        tokens = [*[CONTEXT_ID] * len(hidden), newest, *[MASK_ID] * self.count]
        block = np.zeros((1 + self.count, self.size), np.float32)
        piece = Piece(tokens, start, hidden=np.concatenate([hidden, block]))
        return self.decoder.run_row(row, piece, self.count)

    def measure(self) -> float:
        """Return the seconds of a block; states are lost."""
        hidden = np.zeros((1, self.size), np.float32)
        start = behind(self.decoder.sizes.ctx_len, 2 + self.count)
        return fastest(lambda: self.run_block(0, hidden, start, 0))[0]


class BlockDrafter(LayerDrafter):
    """Drafter of one request by a block drafter; a `Reader`.

    Args:
        block: Block drafter, shared with other requests.
        costs: Costs of calls, as for `Guessing`.
    """

    def __init__(self, block: Block, costs: Costs) -> None:
        super().__init__(block, costs)
        self._block = block

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int | Drawn]:
        """Return a draft of the next tokens, at most one block."""
        return super().draft(tokens, min(most, self._block.count), rows)

    def draft_logits(
        self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()
    ) -> list[Array]:
        """Run the hidden states that have not run, and a block.

        Args:
            tokens: All tokens so far; the hidden states of all but the newest are known.
            count: Number of tokens to draft.
            drafted: Draft tokens; a block does not depend on them.

        Returns:
            Logits (vocab,) of each draft token.
        """
        row, is_own = self._block.rows.of(self)
        if not is_own:
            self._first = self._at
        known, stop = np.concatenate(self._received), len(tokens) - 1 - self._at
        logits = self._block.run_block(row, known[:stop], self._at - self._first, tokens[-1])
        self._at, self._received = self._at + stop, [known[stop:]]
        return [*logits[:count]]
