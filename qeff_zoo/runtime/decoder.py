# SPDX-License-Identifier: Apache-2.0
"""A text-generation graph with its KV states: tokens at positions in, logits out.

Every state is one buffer, bound both as the graph's input and as its output, so that a call writes
its new tokens in place and never copies a cache.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime

from qeff_zoo.errors import GenerationError
from qeff_zoo.package.description import human_size
from qeff_zoo.runtime.memory import available_memory
from qeff_zoo.runtime.onnx_session import dtype_of, open_graph
from qeff_zoo.runtime.sizes import DecoderSizes, Specializations

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

PADDING = -1
_RETAINED = "_RetainedState"


@dataclass(frozen=True)
class Piece:
    """What one row gets in one call.

    Args:
        tokens: Token ids, at least one.
        start: Position of the first.
    """

    tokens: Sequence[int]
    start: int


class Decoder:
    """A graph and the states it retains. One call at a time: the states belong to the calls.

    Rows are what the states have: batch rows, or the slots of continuous batching. What an earlier
    request left in a row is never seen by a later one that starts at position 0.

    Args:
        folder: A package of the task `text-generation`.
        specializations: As in its manifest.
        threads: That compute one operator; None for one per physical core.
        prepack: See `open_graph`.

    Raises:
        GenerationError: Another task's package, or the KV cache does not fit into memory.
    """

    def __init__(
        self,
        folder: Path,
        specializations: Specializations,
        *,
        threads: int | None = None,
        prepack: bool = False,
    ) -> None:
        self._session = open_graph(
            folder,
            task="text-generation",
            inputs={"input_ids", "position_ids"},
            outputs={"logits"},
            threads=threads,
            prepack=prepack,
        )
        self.sizes = DecoderSizes.read(specializations)
        logits = next(value for value in self._session.get_outputs() if value.name == "logits")
        self.vocab_size = int(logits.shape[2])
        self._logits_dtype = dtype_of(logits)
        self._binding = self._session.io_binding()
        #: The retained states by input name, the very memory that the graph reads and writes.
        self.states = self._bind_states()

    def prefill(self, pieces: Mapping[int, Piece], *, padded: bool = False) -> dict[int, Array]:
        """Run prompt tokens: at most `prefill_seq_len` a row; with slots, of one slot alone.

        Args:
            pieces: By row; rows without one stay as they are.
            padded: Make the call `prefill_seq_len` wide, as a program of fixed shapes is; the graph here
                takes any width, and padding costs as much as tokens.

        Returns:
            Per row of `pieces` the logits after its last token, (vocab,).
        """
        longest = max(len(piece.tokens) for piece in pieces.values())
        width = self.sizes.prefill_seq_len if padded else longest
        if self.sizes.full_batch_size is None:
            return self._call(pieces, range(self.sizes.rows), width)
        (slot,) = pieces
        return self._call(pieces, range(slot, slot + 1), width)

    def decode(self, pieces: Mapping[int, Piece]) -> dict[int, Array]:
        """Run one token per row; rows without a piece stay as they are."""
        return self._call(pieces, range(self.sizes.rows), 1)

    def _call(self, pieces: Mapping[int, Piece], rows: range, seq_len: int) -> dict[int, Array]:
        input_ids = np.zeros((len(rows), seq_len), np.int64)
        position_ids = np.full((len(rows), seq_len), PADDING, np.int64)
        for row, piece in pieces.items():
            count = len(piece.tokens)
            input_ids[row - rows.start, :count] = piece.tokens
            position_ids[row - rows.start, :count] = np.arange(piece.start, piece.start + count)
        self._binding.bind_cpu_input("input_ids", input_ids)
        self._binding.bind_cpu_input("position_ids", position_ids)
        if self.sizes.full_batch_size is not None:
            slots = np.array(rows, np.int64)[:, None]
            self._binding.bind_cpu_input("batch_index", slots)
        logits = np.empty((len(rows), 1, self.vocab_size), self._logits_dtype)
        self._binding.bind_ortvalue_output("logits", _value(logits))
        self._session.run_with_iobinding(self._binding)
        return {row: logits[row - rows.start, 0].astype(np.float32) for row in pieces}

    def _bind_states(self) -> dict[str, Array]:
        outputs = {value.name for value in self._session.get_outputs()}
        inputs = {value.name: value for value in self._session.get_inputs()}
        retained = {name: value for name, value in inputs.items() if name + _RETAINED in outputs}
        sizes = {
            "batch_size": self.sizes.rows,
            "full_batch_size": self.sizes.rows,
            "ctx_len": self.sizes.ctx_len,
        }
        shapes = {
            name: [sizes.get(dim, dim) for dim in value.shape] for name, value in retained.items()
        }
        self._check_room(
            sum(math.prod(shapes[name]) * dtype_of(retained[name]).itemsize for name in retained)
        )
        states: dict[str, Array] = {}
        for name, value in retained.items():
            # Zeroed pages of the system's: memory is taken as positions are first written.
            states[name] = np.zeros(shapes[name], dtype_of(value))
            bound = _value(states[name])
            self._binding.bind_ortvalue_input(name, bound)
            self._binding.bind_ortvalue_output(name + _RETAINED, bound)
        return states

    def _check_room(self, needed: int) -> None:
        available = available_memory()
        if available is None or needed <= available:
            return
        raise GenerationError(
            f"The KV cache of {self.sizes.rows} x {self.sizes.ctx_len:,} tokens needs "
            f"{human_size(needed)}; expected at most the {human_size(available)} of memory that "
            "are free. Free some, or build with a smaller --ctx-len, --batch-size or "
            "--full-batch-size."
        )


def _value(array: Array) -> onnxruntime.OrtValue:
    """Wrap an array; on the CPU both share the memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
