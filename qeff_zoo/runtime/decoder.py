# SPDX-License-Identifier: Apache-2.0
"""A text-generation graph with its KV states: tokens at positions in, logits out.

Every state is one buffer, of which the rows of a call are bound both as the graph's input and as its output, so that a
call writes its new tokens in place and never copies a cache. Of states that grow with the context a call looks at the
first rows alone where the graph lets it say how many: at the least compute context that the package has for such a call
and that holds all tokens of its rows. What it does not look at, its mask would hide.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
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
_SEEN = "comp_ctx_lengths"


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
        session: Of a lowered graph of the task `text-generation`.
        sizes: Of the states.

    Raises:
        GenerationError: The KV cache does not fit into memory.
    """

    def __init__(self, session: onnxruntime.InferenceSession, sizes: DecoderSizes) -> None:
        self._says_seen = any(value.name == _SEEN for value in session.get_inputs())
        if not self._says_seen:
            sizes = replace(sizes, comp_ctx_lengths_prefill=(), comp_ctx_lengths_decode=())
        self._session, self.sizes = session, sizes
        logits = next(value for value in self._session.get_outputs() if value.name == "logits")
        self.vocab_size = int(logits.shape[2])
        self._logits_dtype = dtype_of(logits)
        self._bindings: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        #: The retained states by input name, rows first, the very memory that the graph reads and writes.
        self.states = self._new_states()
        known = {"logits", *(name + _RETAINED for name in self.states)}
        names = [value.name for value in self._session.get_outputs()]
        self._others = [name for name in names if name not in known]
        #: Told of every call: pieces of its rows, its width, and what its graph returns besides logits and states.
        self.observe: Callable[[Mapping[int, Piece], int, Mapping[str, Array]], None] | None = None
        self._slides = any(
            name.startswith("past_") and name not in self._growing for name in self.states
        )

    @classmethod
    def open(
        cls,
        folder: Path,
        specializations: Specializations,
        *,
        threads: int | None = None,
        prepack: bool = False,
        graph: bytes | None = None,
    ) -> "Decoder":
        """Open a package of the task `text-generation`.

        Args:
            folder: The package.
            specializations: As in its manifest.
            threads: That compute one operator; None for one per physical core.
            prepack: See `open_graph`.
            graph: The same.

        Raises:
            GenerationError: Another task's package, or the KV cache does not fit into memory.
        """
        session = open_graph(
            folder,
            task="text-generation",
            inputs={"input_ids", "position_ids"},
            outputs={"logits"},
            threads=threads,
            prepack=prepack,
            graph=graph,
        )
        return cls(session, DecoderSizes.read(specializations))

    def prefill(
        self, pieces: Mapping[int, Piece], *, padded: bool = False, context: int = 0
    ) -> dict[int, Array]:
        """Run prompt tokens: at most `prefill_seq_len` a row.

        Args:
            pieces: By row; rows without one stay as they are.
            padded: Make the call `prefill_seq_len` wide where the cache has room, as a program of fixed shapes is; the
                graph here takes any width, and padding costs as much as tokens.
            context: Look at no fewer rows of the cache than so many.

        Returns:
            Per row of `pieces` the logits after its last token, (vocab,).
        """
        widest, ctx_len = self.sizes.prefill_seq_len, self.sizes.ctx_len
        lengths = [n for n in self.sizes.comp_ctx_lengths_prefill if n >= context]
        # The attention kernel takes several tokens of several rows only where all of them begin, and none is padding
        # where a window slides.
        together = {
            row: piece for row, piece in pieces.items() if piece.start == 0 and not self._slides
        }
        logits = self._each_run(together, lengths, min(widest, ctx_len) if padded else None)
        for row in pieces.keys() - together.keys():
            width = min(widest, ctx_len - pieces[row].start) if padded else None
            logits |= self._each_run({row: pieces[row]}, lengths, width)
        return logits

    def decode(self, pieces: Mapping[int, Piece], *, context: int = 0) -> dict[int, Array]:
        """Run one token per row; rows without a piece stay as they are.

        Args:
            pieces: By row.
            context: Look at no fewer rows of the cache than so many.
        """
        return self._each_run(
            pieces, [n for n in self.sizes.comp_ctx_lengths_decode if n >= context]
        )

    def size_of(self, length: int) -> int:
        """Return the bytes of what a row retains of `length` tokens, as `save` returns it."""
        return sum(
            state[0].nbytes * length // (self.sizes.ctx_len if name in self._growing else length)
            for name, state in self.states.items()
        )

    def save(self, row: int, start: int, stop: int) -> dict[str, Array]:
        """Copy what a row has retained of a stretch of its tokens.

        Args:
            row: It has run `stop` tokens, no more: a state that does not grow with the context is copied as it is.
            start: Position of the first token.
            stop: Position after the last.

        Returns:
            By state; of those that grow with the context (…, stop - start, …).
        """
        return {
            name: state[row, :, start:stop].copy() if name in self._growing else state[row].copy()
            for name, state in self.states.items()
        }

    def restore(self, row: int, start: int, saved: Mapping[str, Array], *, latest: bool) -> None:
        """Write what `save` returned into a row.

        Args:
            row: Any.
            start: Position of the first token.
            saved: States of a stretch of tokens.
            latest: Whether the stretch is the last that is written; of those before it, states that do not grow with
                the context are of no use.
        """
        for name, state in self.states.items():
            if name in self._growing:
                state[row, :, start : start + saved[name].shape[1]] = saved[name]
            elif latest:
                state[row] = saved[name]

    def exchange(self, one: int, other: int, one_length: int, other_length: int) -> None:
        """Let two rows change places.

        Args:
            one: A row.
            other: Another.
            one_length: Tokens that the one has run.
            other_length: Tokens that the other has run; 0 for one that nobody uses.
        """
        moved = self.save(other, 0, other_length) if other_length else None
        for name, state in self.states.items():
            if name in self._growing:
                state[other, :, :one_length] = state[one, :, :one_length]
            else:
                state[other] = state[one]
        if moved:
            self.restore(one, 0, moved, latest=True)

    def _each_run(
        self, pieces: Mapping[int, Piece], lengths: Sequence[int], width: int | None = None
    ) -> dict[int, Array]:
        """Call once for every run of neighbouring rows: a call's states are one block of memory."""
        logits: dict[int, Array] = {}
        for rows in _runs(sorted(pieces)):
            widest = max(len(pieces[row].tokens) for row in rows)
            held = max(pieces[row].start + len(pieces[row].tokens) for row in rows)
            seen = self.sizes.covering(lengths, held)
            logits.update(self._call(pieces, rows, width or widest, seen))
        return logits

    def _call(
        self, pieces: Mapping[int, Piece], rows: Sequence[int], width: int, seen: int
    ) -> dict[int, Array]:
        input_ids = np.zeros((len(rows), width), np.int64)
        position_ids = np.full((len(rows), width), PADDING, np.int64)
        for place, row in enumerate(rows):
            tokens, start = pieces[row].tokens, pieces[row].start
            input_ids[place, : len(tokens)] = tokens
            position_ids[place, : len(tokens)] = np.arange(start, start + len(tokens))
        binding = self._binding(rows[0], len(rows))
        binding.bind_cpu_input("input_ids", input_ids)
        binding.bind_cpu_input("position_ids", position_ids)
        if self._says_seen:
            binding.bind_cpu_input(_SEEN, np.zeros(seen, np.int64))
        logits = np.empty((len(rows), 1, self.vocab_size), self._logits_dtype)
        binding.bind_ortvalue_output("logits", _value(logits))
        for name in self._others:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        if self.observe:
            # In the order in which they were bound: states, logits, others.
            found = [value.numpy() for value in binding.get_outputs()[len(self.states) + 1 :]]
            others = dict(zip(self._others, found, strict=True))
            self.observe({row: pieces[row] for row in rows}, width, others)
        return {
            row: logits[place, 0].astype(np.float32, copy=False) for place, row in enumerate(rows)
        }

    def _binding(self, first: int, count: int) -> onnxruntime.IOBinding:
        """Bind so many neighbouring rows of every state, as what a call reads and what it writes."""
        if (first, count) not in self._bindings:
            binding = self._bindings[first, count] = self._session.io_binding()
            for name, state in self.states.items():
                bound = _value(state[first : first + count])
                binding.bind_ortvalue_input(name, bound)
                binding.bind_ortvalue_output(name + _RETAINED, bound)
        return self._bindings[first, count]

    def _new_states(self) -> dict[str, Array]:
        """Make the states: zeroed pages of the system's, so that memory is taken as positions are first written."""
        outputs = {value.name for value in self._session.get_outputs()}
        inputs = {value.name: value for value in self._session.get_inputs()}
        retained = {name: value for name, value in inputs.items() if name + _RETAINED in outputs}
        sizes = {"batch_size": self.sizes.rows, "ctx_len": self.sizes.ctx_len}
        shapes = {
            name: [sizes.get(dim, dim) for dim in value.shape] for name, value in retained.items()
        }
        self._check_room(
            sum(math.prod(shapes[name]) * dtype_of(retained[name]).itemsize for name in retained)
        )
        self._growing = frozenset(
            name for name, value in retained.items() if "ctx_len" in value.shape
        )
        self._slides = any(
            name.startswith("past_") and name not in self._growing for name in shapes
        )
        return {name: np.zeros(shapes[name], dtype_of(value)) for name, value in retained.items()}

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


def _runs(rows: Sequence[int]) -> Iterator[list[int]]:
    """Cut ascending numbers into runs without a gap."""
    for _, run in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        yield [row for _, row in run]


def _value(array: Array) -> onnxruntime.OrtValue:
    """Wrap an array; on the CPU both share the memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
