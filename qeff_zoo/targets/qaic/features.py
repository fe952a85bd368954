# SPDX-License-Identifier: Apache-2.0
"""Pictures and sounds as Cloud AI 100's programs are given them, under QEfficient's names.

A program that reads one returns `vision_embeds` (1, rows, hidden), of sounds `audio_embeds`. The language program
retains them: a call that has none of them leaves them out. It finds the tokens in whose place they stand itself, and is
told for each row of a call, in `image_idx` (batch_size, 1) or `audio_idx`, the features of its first one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qeff_zoo.runtime.program import Array, Program, Tensor
from qeff_zoo.states import State
from qeff_zoo.targets.qaic.crossing import Asking

#: The one picture or window of a call, as a size for the compiler, which expects one.
BATCH = "batch_size"
#: What QEfficient calls features.
NAMES: Mapping[str, str] = {"image_embeds": "vision_embeds", "audio_embeds": "audio_embeds"}
_OURS = {name: ours for ours, name in NAMES.items()}
#: Inputs that say where the features of a row's tokens begin.
FIRST: Mapping[str, str] = {"image_index": "image_idx", "audio_index": "audio_idx"}
#: Where they begin of a row that has none: a token that a model made itself stands for no picture.
NOWHERE = -(1 << 24)


def adapted(program: Any) -> Program:
    """Let an opened program take and return features, and what was read, as those of all targets do.

    Args:
        program: Of this target, as its graph is.
    """
    if program.features:
        return Merging(program, program.features)
    if read := [state for state in program.states if not state.written]:
        return Asking(program, read)
    if any(name in _OURS for name in program.outputs):
        return Reading(program)
    return program  # type: ignore[no-any-return]


class Reading:
    """A program that reads pictures or sounds, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: As its graph is.
    """

    def __init__(self, program: Any) -> None:
        self._program = program
        self.inputs = {
            name: replace(one, shape=(1, *one.shape[1:]) if one.shape[0] == BATCH else one.shape)
            for name, one in program.inputs.items()
        }
        self.outputs = {
            _OURS.get(name, name): Tensor(dtype=one.dtype, shape=one.shape[name in _OURS :])
            for name, one in program.outputs.items()
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        return {
            _OURS.get(name, name): array[0] if name in _OURS else array
            for name, array in self._program.run(inputs, rows).items()
        }


class Merging:
    """A language program with features among its tokens, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: As its graph is.
        features: That it retains.
    """

    def __init__(self, program: Any, features: Sequence[State]) -> None:
        self._program = program
        sizes = {
            symbol: int(size)
            for entry in program.specializations
            for symbol, size in entry["symbols"].items()
        }
        self._features = {_OURS[one.name]: one for one in features}
        self._shapes = {
            name: [int(sizes.get(str(axis), axis)) for axis in one.axes]
            for name, one in self._features.items()
        }
        self._index, self._first = next(pair for pair in FIRST.items() if pair[1] in program.inputs)
        first = program.inputs[self._first]
        self.inputs = {
            **{name: one for name, one in program.inputs.items() if name != self._first},
            self._index: Tensor(dtype=first.dtype, shape=(first.shape[0], "seq_len")),
            **{
                name: Tensor(dtype=np.dtype(np.float32), shape=one.axes[1:])
                for name, one in self._features.items()
            },
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        index = inputs[self._index]
        shown = (index >= 0).any(1)
        found = np.where(index >= 0, index, np.iinfo(index.dtype).max).min(1)
        first = np.where(shown, found, NOWHERE)[:, None]
        if shown.any():
            self._program.retain(
                {one.name: self._filled(name, inputs[name]) for name, one in self._features.items()}
            )
        ours = {self._index, *self._features}
        others = {name: array for name, array in inputs.items() if name not in ours}
        made: Mapping[str, Array] = self._program.run({**others, self._first: first}, rows)
        return made

    def _filled(self, name: str, rows: Array) -> Array:
        """Return features as they are kept: of a call that is too wide to be made, as many as there is room for."""
        filled = np.zeros(self._shapes[name], np.float32)
        room = filled.shape[1]
        filled[0, : len(rows)] = rows[:room]
        return filled
