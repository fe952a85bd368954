# SPDX-License-Identifier: Apache-2.0
"""States of single rows, moved between the host and a card while it runs a call.

A slice is a region of a state on the card: an array of the host sets its size, and offsets its beginning
there. That is what QEfficient's examples of continuous batching and vllm-qaic have in common, see
docs/qaic-reference.md. Slices that were set stay set until the call of `ExecObj.setData` with pairs of index and array
that follows them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from qeff_zoo.graph.states import State
from qeff_zoo.runtime.program import Array, Memory

_Offset: TypeAlias = tuple[str, int]

_ROW, _TOKEN = "batch_index", "ctx_start"  # offsets, as both call them


def specification(states: Sequence[State], memory: Memory) -> str:
    """Return the slices of states in the form of `Program.createSlicingSpecHandle`.

    Args:
        states: States of a program.
        memory: Their buffers, in the types of the card.

    Returns:
        JSON: for each state a pattern of its names alone, as input and as output, and where its axes begin.
    """
    specs = []
    for state in states:
        starts: list[str | int] = [_ROW] + [0] * (memory[state.name].ndim - 1)
        if state.grows:
            starts[2] = _TOKEN
        specs.append(
            {
                "Name": f"{state.name}(_.*)?",
                "ElemSize": memory[state.name].itemsize,
                "DimSpecs": [{"start": start} for start in starts],
            }
        )
    return json.dumps({"BufferSpecs": specs})


class Slices:
    """What calls move: rows that the host wrote, to the card, and rows that a call is for, back from it.

    Args:
        handle: Handle of `specification`, by `Program.createSlicingSpecHandle`.
        bindings: Index by name, of inputs and outputs.
        states: States of the program.
        memory: Their buffers on the host.
    """

    def __init__(
        self, handle: Any, bindings: Mapping[str, int], states: Sequence[State], memory: Memory
    ) -> None:
        self.handle, self._memory = handle, memory
        self._given = [(bindings[state.name], memory[state.name]) for state in states]
        self._returned = [(bindings[state.output], memory[state.name]) for state in states]

    def of(self, rows: Sequence[int]) -> Iterator[tuple[list[tuple[int, Array]], list[_Offset]]]:
        """Yield the arguments of `ExecObj.setDataWithSlices` before a call: arrays by index, and offsets.

        Args:
            rows: Rows of the call.
        """
        for row in rows:
            given = self._given if row in self._memory.written else []
            returned = self._returned if self._memory.is_current else []
            moved = [(index, state[row : row + 1]) for index, state in (*given, *returned)]
            if moved:
                yield moved, [(_ROW, row), (_TOKEN, 0)]
