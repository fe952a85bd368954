# SPDX-License-Identifier: Apache-2.0
"""Calls of one program, with QEfficient's named arrays in and out."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from qeff_zoo.errors import ContextLengthError, GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime.decoding.call_inputs import AXES, PADDING
from qeff_zoo.runtime.engine.speculation.heads import Heads
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.sessions.opening import open_heads

_COMP_CTX, _KEPT = "comp_ctx_lengths", "num_logits_to_keep"
_LOGITS, _HIDDEN = "logits", "hidden_states"
_TOKENS, _POSITIONS, _SLOTS = "input_ids", "position_ids", "batch_index"


#: Data type and axes of an input or output: a size or a symbol for each axis.
Described: TypeAlias = tuple[str, tuple[int | str | None, ...]]


class Calls:
    """Calls of a program.

    Args:
        package: Package of the program.
        program: Opened program.
        image_sizes: Sizes of images that `compile` was given, HEIGHTxWIDTH each.
    """

    #: Names of inputs that a program may lack; they are then ignored.
    accepts: ClassVar[set[str]] = {_SLOTS, _KEPT, _COMP_CTX, _POSITIONS}

    def __init__(self, package: Package, program: Program, image_sizes: Sequence[str] = ()) -> None:
        self.package, self.program = package, program
        self.image_sizes = image_sizes
        heads = open_heads(package) if _HIDDEN in program.outputs else None
        #: Draft heads with a program of their own, whose logits follow the model's as on a card.
        self._heads = None if heads is None else Heads(heads)
        self._ctx_len = DecoderSizes.read(program.specializations).ctx_len if program.states else 0

    @classmethod
    def inputs_by_name(cls, arrays: dict[str, Described]) -> dict[str, Described]:
        """Return the inputs of a call by QEfficient's names.

        Args:
            arrays: Inputs of the program in the manifest.
        """
        return arrays

    @classmethod
    def outputs_by_name(cls, arrays: dict[str, Described]) -> dict[str, Described]:
        """Return the outputs of a call by QEfficient's names; `arrays` as for `inputs_by_name`."""
        return arrays

    def run(self, given: Mapping[str, Array], wanted: Collection[str]) -> dict[str, Array]:
        """Run one call, in as many parts as the program requires.

        Args:
            given: Inputs by name; those that the program does not take are ignored.
            wanted: Names of outputs to return.

        Raises:
            GenerationError: An input is missing, or of a wrong shape.
        """
        if not self.program.states:
            return self._answers(self.program.run(self.inputs_of(given)), wanted)
        tokens, positions = self._required(given, _TOKENS), self._required(given, _POSITIONS)
        axes = positions[1:] if positions.ndim == 3 else None
        positions = positions[0] if positions.ndim == 3 else positions
        kept = given[_KEPT].shape[0] if _KEPT in given and _KEPT in self.program.inputs else 1
        if kept > 1:  # drafts beyond the context are padding
            positions = np.where(positions < self._ctx_len, positions, PADDING)
        if (end := int(positions.max()) + 1) > self._ctx_len:
            raise ContextLengthError(
                f"The call ends at position {end:,}; expected at most {self._ctx_len:,}, the package's context. Give a "
                "shorter prompt, or compile with a larger ctx_len."
            )
        used = np.flatnonzero((positions != PADDING).any(axis=1))
        slots = given[_SLOTS].ravel().tolist() if _SLOTS in given else [*range(len(tokens))]
        self._restore(given, slots)
        widths = {
            int(place): int(np.flatnonzero(positions[place] != PADDING)[-1]) + 1 for place in used
        }
        starts = {slots[place]: int(positions[place, 0]) for place in widths}
        rows_ = {slots[place]: place for place in widths}
        joined: dict[str, Array] = {}
        prefill = kept > 1 or max(widths.values(), default=1) > 1
        for rows in self.program.together(starts, prefill=prefill, kept=kept):
            part = [rows_[row] for row in rows]
            width = max(widths[place] for place in part)
            inputs = {
                _TOKENS: np.ascontiguousarray(tokens[part, :width], np.int64),
                _POSITIONS: np.ascontiguousarray(positions[part, :width], np.int64),
            }
            if axes is not None and AXES in self.program.inputs:
                inputs[AXES] = np.maximum(axes[:, part, :width], 0)
            outputs = self._call(given, inputs, part, rows, kept)
            if self._heads is not None:
                outputs = self._with_heads(outputs, self._heads, [widths[place] for place in part])
            self._put(joined, outputs, part, len(tokens), kept)
        return self._answers({**joined, **self._states(wanted, slots)}, wanted)

    def _with_heads(
        self, outputs: Mapping[str, Array], heads: Heads, widths: Sequence[int]
    ) -> dict[str, Array]:
        """Return outputs whose logits are those of the model and its draft heads, (rows, tokens, 1 + heads, vocab).

        Args:
            outputs: Outputs of a part of a call.
            heads: Draft heads.
            widths: Number of tokens of each row.
        """
        own, states = outputs[_LOGITS], outputs[_HIDDEN]
        hidden = np.zeros((*own.shape[:2], states.shape[-1]), states.dtype)
        for row, width in enumerate(widths):
            kept = states[row, max(0, width - own.shape[1]) : width]
            hidden[row, : len(kept)] = kept
        rows = hidden.reshape(-1, hidden.shape[-1])
        drafted = heads.logits(rows, own.argmax(-1).reshape(-1, 1).tolist())
        drafted = drafted.reshape(*own.shape[:2], -1, own.shape[-1])
        every = np.concatenate([own[:, :, None], drafted], axis=2)
        return {
            **{name: output for name, output in outputs.items() if name != _HIDDEN},
            _LOGITS: every,
        }

    def inputs_of(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of a program without states."""
        return {
            name: np.ascontiguousarray(self._required(given, name), value.dtype)
            for name, value in self.program.inputs.items()
        }

    def shown(
        self, given: Mapping[str, Array], tokens: Array, part: Sequence[int]
    ) -> dict[str, Array]:
        """Return inputs of image features; none here.

        Args:
            given: Inputs of the whole call.
            tokens: Token ids of a part, (rows, width).
            part: Places of its rows in the call.
        """
        return {}

    def _call(
        self,
        given: Mapping[str, Array],
        inputs: dict[str, Array],
        part: Sequence[int],
        rows: Sequence[int],
        kept: int,
    ) -> Mapping[str, Array]:
        """Run a part of a call, with all further inputs."""
        known = self.program.inputs
        inputs |= self.shown(given, inputs[_TOKENS], part)
        if AXES in known and AXES not in inputs:
            inputs[AXES] = np.repeat(
                np.maximum(inputs[_POSITIONS], 0)[None], int(known[AXES].shape[0]), axis=0
            )
        if _KEPT in known:
            inputs[_KEPT] = np.zeros(min(kept, inputs[_TOKENS].shape[1]), np.int64)
        if _COMP_CTX in known:
            inputs[_COMP_CTX] = np.zeros(self._context_length(given, inputs[_POSITIONS]), np.int64)
        for name in known.keys() - inputs.keys():
            value = self._required(given, name)
            inputs[name] = np.ascontiguousarray(
                value[part] if value.ndim else value, known[name].dtype
            )
        return self.program.run({name: inputs[name] for name in known}, rows)

    def _context_length(self, given: Mapping[str, Array], positions: Array) -> int:
        """Return the compute context of a call: that of the caller, or the shortest that has room."""
        if _COMP_CTX in given:
            return int(given[_COMP_CTX].size)
        held = int(positions.max()) + 1
        every = {
            int(specialization["symbols"][_COMP_CTX])
            for specialization in self.program.specializations
            if _COMP_CTX in specialization["symbols"]
        }
        return min(length for length in every if length >= held)

    def _restore(self, given: Mapping[str, Array], slots: Sequence[int]) -> None:
        """Replace states of batch slots."""
        memory = self.program.memory
        for state in self.program.states:
            if state.name not in given:
                continue
            if memory is None:
                raise GenerationError(
                    f"{state.name!r} is given, and the program keeps its states on the card; expected none. Compile "
                    "with prefill_only=True or prefill_only=False, for programs that hand over their states."
                )
            array, rows = given[state.name], memory[state.name]
            if array.shape != (len(slots), *rows.shape[1:]):
                raise GenerationError(
                    f"{state.name!r} has shape {array.shape}; expected {(len(slots), *rows.shape[1:])}, as the program "
                    "keeps it. Compile both programs with the same ctx_len."
                )
            for row, slot in enumerate(slots):
                rows[slot] = array[row]
                memory.written.add(slot)

    def _states(self, wanted: Collection[str], slots: Sequence[int]) -> dict[str, Array]:
        """Return copies of the states of batch slots, if the host can read them."""
        memory = self.program.memory
        if memory is None or not memory.is_current:
            return {}
        return {
            state.output: memory[state.name][slots]
            for state in self.program.states
            if state.output in wanted
        }

    @staticmethod
    def _put(
        joined: dict[str, Array],
        outputs: Mapping[str, Array],
        part: Sequence[int],
        count: int,
        kept: int,
    ) -> None:
        """Put the outputs of a part into those of the call; rows and tokens of padding alone have zeros."""
        for name, array in outputs.items():
            sizes = (kept, *array.shape[2:]) if name == _LOGITS else array.shape[1:]
            whole = joined.setdefault(name, np.zeros((count, *sizes), array.dtype))
            if name == _LOGITS:
                whole[part, : array.shape[1]] = array
            else:
                whole[part] = array

    def _answers(self, outputs: Mapping[str, Array], wanted: Collection[str]) -> dict[str, Array]:
        """Return the outputs that are wanted."""
        return {name: np.array(array) for name, array in outputs.items() if name in wanted}

    def _required(self, given: Mapping[str, Array], name: str) -> Any:
        if name not in given:
            raise GenerationError(
                f"The call has no {name!r}; expected {', '.join(map(repr, self.program.inputs))}. Add it to the inputs."
            )
        return given[name]
