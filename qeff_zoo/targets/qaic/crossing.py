# SPDX-License-Identifier: Apache-2.0
"""What an encoder has read, for a decoder on Cloud AI 100: the host has it, and hands it over where a row is new.

A card takes a state whole or not at all: where an encoder has read something into a row, the decoder's next call is
given what the encoder has made for every row, and keeps that. All other calls leave it out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.graph.states import State
from qeff_zoo.runtime.memory import new_states
from qeff_zoo.runtime.program import Array


class CrossAttentionProgram:
    """A decoder that attends to an encoder's output, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Program of the graph.
        states: States that the host writes.

    Raises:
        GenerationError: They do not fit into memory.
    """

    def __init__(self, program: Any, states: Sequence[State]) -> None:
        self._program = program
        dtypes = dict.fromkeys((one.name for one in states), np.dtype(np.float16))
        #: What the host writes; all else the card keeps.
        self.memory = new_states(states, dtypes, program.specializations, is_current=False)
        program.retain(self.memory)  # a card begins with anything

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        if self.memory.written:
            self._program.retain(self.memory)
            self.memory.written.clear()
        made: Mapping[str, Array] = self._program.run(inputs, rows)
        return made
