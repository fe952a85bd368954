# SPDX-License-Identifier: Apache-2.0
"""Images and audio as inputs of Cloud AI 100 programs, under QEfficient's names.

A program that reads one returns `vision_embeds` (1, rows, hidden), of audio `audio_embeds`; and, of models that add
more to the states of some layers, `deepstack_features` (layers, 1, rows, hidden). The language program retains them: a
call that has none of them leaves them out. It finds the tokens in whose place they stand itself, and gets for each
row of a call, in `image_idx` (batch_size, 1) or `audio_idx`, the features of its first one. A program that reads
images itself retains `pixel_values` in the place of features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qeff_zoo.graph.states import State
from qeff_zoo.runtime.decoding.call_inputs import PADDING, PIXELS
from qeff_zoo.runtime.program import Array, Program, Tensor
from qeff_zoo.targets.qaic.crossing import CrossAttentionProgram

#: The one image or window of a call, as a size for the compiler, which expects one.
BATCH = "batch_size"
#: What QEfficient calls features.
NAMES: Mapping[str, str] = {"image_embeds": "vision_embeds", "audio_embeds": "audio_embeds"}
_OURS = {name: ours for ours, name in NAMES.items()}
#: What it calls those that are added to the states of layers, and what begins their names elsewhere.
LAYERS, OF_LAYER = "deepstack_features", "deepstack."
#: Inputs that say where the features of a row's tokens begin.
FIRST: Mapping[str, str] = {"image_index": "image_idx", "audio_index": "audio_idx"}
#: Where they begin of a row that has none: a token that a model made itself stands for no image.
NOWHERE = -(1 << 24)


def adapted(program: Any) -> Program:
    """Let an opened program take and return features, and what was read, as those of all targets do.

    Args:
        program: Program of this target.
    """
    if program.features:
        return Merging(program, program.features)
    if read := [state for state in program.states if not state.written]:
        return CrossAttentionProgram(program, read)
    if any(name in _OURS for name in program.outputs):
        return EncoderProgram(program)
    return program  # type: ignore[no-any-return]


class EncoderProgram:
    """An image or audio encoder, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Program of the graph.
    """

    def __init__(self, program: Any) -> None:
        self._program = program
        self.inputs = {
            name: replace(
                value, shape=(1, *value.shape[1:]) if value.shape[0] == BATCH else value.shape
            )
            for name, value in program.inputs.items()
        }
        self.outputs = {
            ours: Tensor(dtype=output.dtype, shape=shape)
            for name, output in program.outputs.items()
            for ours, shape in _shapes(name, output.shape).items()
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    @property
    def most_patches(self) -> int:
        """Maximum number of patches of an image; 0 for programs without patches."""
        if "position_ids" not in self.inputs:
            return 0
        symbol = str(self.inputs["position_ids"].shape[0])
        return max(int(entry["symbols"][symbol]) for entry in self._program.specializations)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        outputs: dict[str, Array] = {**self._program.run(inputs, rows)}
        if LAYERS in outputs:
            outputs |= {f"{OF_LAYER}{at}": one[0] for at, one in enumerate(outputs.pop(LAYERS))}
        return {
            _OURS.get(name, name): array[0] if name in _OURS else array
            for name, array in outputs.items()
        }


def _shapes(name: str, shape: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Return what an output or a retained input is elsewhere, with its shape."""
    if name == LAYERS:
        return {f"{OF_LAYER}{at}": shape[2:] for at in range(int(shape[0]))}
    ours: str = _OURS.get(name, name)
    return {ours: shape[name in _OURS :]}


class Merging:
    """A language program with features among its tokens, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Program of the graph.
        features: Features that the program retains.
    """

    def __init__(self, program: Any, features: Sequence[State]) -> None:
        self._program = program
        sizes = {
            symbol: int(size)
            for entry in program.specializations
            for symbol, size in entry["symbols"].items()
        }
        #: By name, the shape of what is kept, and what it is made of.
        self._kept = {
            feature.name: (
                [int(sizes.get(str(axis), axis)) for axis in feature.axes],
                _shapes(feature.name, feature.axes),
            )
            for feature in features
        }
        given = {name: shape for _, parts in self._kept.values() for name, shape in parts.items()}
        self._index, self._first = next(pair for pair in FIRST.items() if pair[1] in program.inputs)
        first = program.inputs[self._first]
        self.inputs = {
            **{name: value for name, value in program.inputs.items() if name != self._first},
            self._index: Tensor(dtype=first.dtype, shape=(first.shape[0], "seq_len")),
            **{
                name: Tensor(dtype=np.dtype(np.float32), shape=shape)
                for name, shape in given.items()
            },
        }
        self._ours = {self._index, *given}
        #: Whether it reads images itself: in calls of several tokens, see `qeff_zoo.graph.passes.joining`.
        self._reads = any(name.endswith(PIXELS) for name in given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        index = inputs[self._index]
        shown = (index >= 0).any(1)
        earliest = np.where(index >= 0, index, np.iinfo(index.dtype).max).min(1)
        first = np.where(shown, earliest, NOWHERE)[:, None]
        if shown.any():
            self._program.retain(
                {
                    name: inputs[name]
                    if name.endswith(PIXELS)
                    else _filled(shape, [inputs[part] for part in parts])
                    for name, (shape, parts) in self._kept.items()
                }
            )
        others = {name: array for name, array in inputs.items() if name not in self._ours}
        given = {**others, self._first: first}
        if self._reads and shown.any() and index.shape[1] == 1:
            return self._of_first(self._program.run({**given, **_of_two(others)}, rows))
        outputs: Mapping[str, Array] = self._program.run(given, rows)
        return outputs

    def _of_first(self, made: Mapping[str, Array]) -> dict[str, Array]:
        """Return what a call of one row has made of its first token."""
        outputs = {}
        for name, array in made.items():
            if name in self.outputs:
                of_tokens = "seq_len" in self.outputs[name].shape
                outputs[name] = array[:, :1] if of_tokens else array
            else:  # choices, (tokens, …)
                outputs[name] = array[:1]
        return outputs


def _of_two(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the tokens of a call of one, and where they are, with one of padding behind."""
    fillings = {"input_ids": 0, "position_ids": PADDING}
    return {
        name: np.pad(inputs[name], ((0, 0), (0, 1)), constant_values=filling)
        for name, filling in fillings.items()
    }


def _filled(shape: Sequence[int], parts: Sequence[Array]) -> Array:
    """Return features as they are kept: of a call that is too wide to be made, as many as there is room for."""
    filled = np.zeros(shape, np.float32)
    room, each = shape[-2], filled.reshape(-1, *shape[-2:])
    for target, rows in zip(each, parts, strict=True):
        target[: len(rows)] = rows[:room]
    return filled
