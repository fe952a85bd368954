# SPDX-License-Identifier: Apache-2.0
"""Cross-attention states of a decoder on Cloud AI 100: the host keeps them, and passes them on after a change.

A card accepts only complete states: when an encoder has written a batch slot, the next call of the decoder gets the
states of all slots, and the card retains them. All other calls omit them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.graph.states import State
from qeff_zoo.runtime.memory import new_states
from qeff_zoo.runtime.program import Array


class CrossAttentionProgram:
    """Decoder that attends to an encoder's output, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Program of the graph.
        states: States that the host writes.

    Raises:
        GenerationError: The states do not fit into memory.
    """

    def __init__(self, program: Any, states: Sequence[State]) -> None:
        self._program = program
        dtypes = dict.fromkeys((state.name for state in states), np.dtype(np.float16))
        #: States that the host writes; the card keeps all others.
        self.memory = new_states(states, dtypes, program.specializations, is_current=False)
        program.retain(self.memory)  # the initial states of a card are undefined

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        if self.memory.written:
            self._program.retain(self.memory)
            self.memory.written.clear()
        outputs: Mapping[str, Array] = self._program.run(inputs, rows)
        return outputs
