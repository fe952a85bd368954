# SPDX-License-Identifier: Apache-2.0
"""Calls of a text-generation program: tokens and positions in, logits out.

A program with compute contexts reads only the first positions of the KV cache in a call: the smallest compute context
of the package that covers all tokens of the call's batch slots. The causal mask would hide the other positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoding.adapters import Adapters
from qeff_zoo.runtime.decoding.call_inputs import (
    COMP_CTX,
    HIDDEN,
    KEPT,
    Call,
    Piece,
    providers_of,
    token_inputs,
)
from qeff_zoo.runtime.decoding.device_sampling import DeviceSampler, Sampled
from qeff_zoo.runtime.decoding.sampling import Sampling
from qeff_zoo.runtime.program import Array, Program, SplitsPrompts
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.runtime.text.grammar import Grammar
from qeff_zoo.runtime.text.thinking_budget import ThinkingBudget

#: Output with the embedding of a prompt, in place of logits; the name is QEfficient's.
EMBEDDING = "embedding_output"
#: Approximations of hidden states for draft tokens.
DRAFTED = "drafted_states"


class Decoder:
    """Calls of a program. Calls do not run concurrently: they share the states.

    Rows are batch slots: those of static batching, or of continuous batching. A request that starts at position 0
    never attends to KV states of an earlier request in its slot.

    Args:
        program: Program of the task `text-generation`.
        adapters: Adapters of its session; None for the base model.
        embeds: Vocabulary size of a model whose program returns embeddings in place of logits; 0 for logits.
    """

    def __init__(
        self, program: Program, adapters: Adapters | None = None, *, embeds: int = 0
    ) -> None:
        self._adapters = Adapters(program) if adapters is None else adapters
        sizes = DecoderSizes.read(program.specializations)
        self._has_comp_ctx = COMP_CTX in program.inputs
        if not self._has_comp_ctx:
            sizes = replace(sizes, comp_ctx_lengths_prefill=(), comp_ctx_lengths_decode=())
        self.program, self.sizes = program, sizes
        #: Sampler of a program that samples on the device; None if the program returns logits alone.
        self.sampler = DeviceSampler.of(program)
        #: Last sampled token by batch slot; empty if the host samples.
        self.drawn: dict[int, Sampled] = {}
        self._output = EMBEDDING if embeds else "logits"
        shape = (
            (None, None, self.sampler.vocab_size)
            if self.sampler
            else program.outputs[self._output].shape
        )
        self.vocab_size = embeds or int(shape[-1])
        #: Number of draft heads whose logits follow the model's.
        self.heads = int(shape[2]) - 1 if len(shape) == 4 else 0
        #: Draft inputs of the newest tokens by batch slot, (tokens, …); empty without drafts: hidden states (size,),
        #: or the logits of draft heads (heads, vocab).
        self.hidden: dict[int, Array] = {}
        self._growing = frozenset(state.name for state in program.states if state.grows)
        self._written = frozenset(state.name for state in program.states if state.written)
        #: Whether the newest tokens of a slot can be dropped by overwriting: all states have an entry for each
        #: position.
        self.only_grows = self._growing == self._written
        #: Number of tokens at whose multiples prompts are split into calls. It is below `prefill_seq_len` if the length
        #: of calls changes no bit, as long as none has a single token.
        self.split = sizes.prefill_seq_len
        if isinstance(program, SplitsPrompts) and program.split and not self.split % program.split:
            self.split = program.split
        self._providers = providers_of(program, sizes, self._adapters, self.sampler)
        #: Output from which drafts are made; empty for a program without one.
        self._drafted = next((name for name in (HIDDEN, DRAFTED) if name in program.outputs), "")
        #: Whether calls return logits, and not only the tokens that the program sampled.
        self.returns_logits = self._output in program.outputs
        #: Whether a call can return logits after each of its tokens, see `verify`.
        self.verifies = KEPT in program.inputs

    def require_logits(self, what: str) -> None:
        """Require that the program returns logits.

        Args:
            what: Subject of an error: the feature that needs logits.

        Raises:
            GenerationError: If the program returns no logits.
        """
        if not self.returns_logits:
            raise GenerationError(
                f"The package draws tokens on its device and returns no logits; expected these for {what}. Build it "
                "without --include-sampler."
            )

    def check(
        self,
        sampling: Sampling,
        settings: GenerationSettings,
        grammar: Grammar | ThinkingBudget | None,
    ) -> None:
        """Reject options that a program with a sampler does not support, see `DeviceSampler.check`."""
        if self.sampler:
            self.sampler.check(sampling, grammar, settings)

    @property
    def states(self) -> Mapping[str, Array]:
        """States by input name, batch slots first; empty if the host cannot access them."""
        return self.program.memory or {}

    def prefill(
        self, pieces: Mapping[int, Piece], *, padded: bool = False, context: int = 0
    ) -> dict[int, Array]:
        """Run prompt tokens, at most `prefill_seq_len` per batch slot, or a span or a last token beyond them.

        Args:
            pieces: Tokens by batch slot; other slots stay unchanged.
            padded: Whether the call is padded to `prefill_seq_len` if the context has room, as for a program of fixed
                shapes; the graph here takes any width, and padding costs as much as tokens.
            context: Minimum number of positions that the call reads.

        Returns:
            Logits after the last token of each slot in `pieces`, (vocab,); empty if `returns_logits` is false.
        """
        widest, ctx_len = self.sizes.prefill_seq_len, self.sizes.ctx_len
        lengths = [n for n in self.sizes.comp_ctx_lengths_prefill if n >= context]
        starts = {row: piece.start for row, piece in pieces.items()}
        logits: dict[int, Array] = {}
        for rows in self.program.together(starts, prefill=True):
            room = ctx_len - max(starts[row] for row in rows)
            width = min(widest, room) if padded else None
            logits |= _newest(self._one_call(pieces, rows, lengths, width))
        return logits

    def decode(self, pieces: Mapping[int, Piece], *, context: int = 0) -> dict[int, Array]:
        """Run one token per batch slot; slots without a piece stay unchanged.

        Args:
            pieces: Tokens by batch slot.
            context: Minimum number of positions that the call reads.
        """
        lengths = [n for n in self.sizes.comp_ctx_lengths_decode if n >= context]
        starts = {row: piece.start for row, piece in pieces.items()}
        logits: dict[int, Array] = {}
        for rows in self.program.together(starts, prefill=False):
            logits |= _newest(self._one_call(pieces, rows, lengths))
        return logits

    def verify(self, pieces: Mapping[int, Piece], *, context: int = 0) -> dict[int, Array]:
        """Run several tokens per batch slot and return logits after each; other slots stay unchanged.

        Args:
            pieces: Tokens by batch slot; with fixed shapes no more than a decode call checks, including the newest
                token.
            context: Minimum number of positions that the call reads.

        Returns:
            Logits of each slot in `pieces`, (tokens, vocab).

        Raises:
            GenerationError: If the package was built without speculative decoding, or for fewer draft tokens.
        """
        if not self.verifies:
            raise GenerationError(
                "The package returns the logits of one token a call; expected one that returns several. Build it with "
                "--num-speculative-tokens."
            )
        lengths = [n for n in self.sizes.comp_ctx_lengths_decode if n >= context]
        starts = {row: piece.start for row, piece in pieces.items()}
        logits: dict[int, Array] = {}
        for rows in self.verified_together(
            starts, max(len(piece.tokens) for piece in pieces.values())
        ):
            kept = max(len(pieces[row].tokens) for row in rows)
            logits |= self._one_call(pieces, rows, lengths, kept=kept)
        return logits

    def verified_together(self, starts: Mapping[int, int], kept: int) -> list[list[int]]:
        """Split batch slots into groups that one call of `verify` takes.

        Args:
            starts: Position of the first new token by batch slot.
            kept: Maximum number of new tokens of a slot.
        """
        return self.program.together(starts, prefill=True, kept=kept)

    def run_row(self, row: int, piece: Piece, kept: int) -> Array:
        """Run tokens of one batch slot of a program that always returns the logits of several tokens.

        Args:
            row: Batch slot; other slots stay unchanged.
            piece: Tokens.
            kept: Number of tokens whose logits the program returns.

        Returns:
            Logits of the last tokens, (kept, vocab).
        """
        return self._one_call({row: piece}, [row], [], kept=kept)[row]

    @property
    def layout(self) -> list[list[int | str]]:
        """Name, type and sizes of every state, independent of the number of slots and the context."""
        return [
            [state.name, str(self.states[state.name].dtype), *state.axes[1:]]
            for state in self.program.states
        ]

    @property
    def movable(self) -> bool:
        """Whether states can be read and written, as `save` and `exchange` require; `restore` only writes."""
        return self.program.memory is not None and self.program.memory.is_current

    def size_of(self, length: int) -> int:
        """Return the bytes of a slot's states for `length` tokens, as `save` returns them."""
        return sum(
            state[0].nbytes * length // (self.sizes.ctx_len if name in self._growing else length)
            for name, state in self.states.items()
            if name in self._written
        )

    def save(self, row: int, start: int, stop: int) -> dict[str, Array]:
        """Copy the states of a slot for a range of its tokens.

        Args:
            row: Batch slot that has run exactly `stop` tokens: a state of constant size is copied whole.
            start: Position of the first token.
            stop: Position after the last.

        Returns:
            States by name that calls write; those that grow with the context have shape (…, stop - start, …).
        """
        return {
            name: state[row, :, start:stop].copy() if name in self._growing else state[row].copy()
            for name, state in self.states.items()
            if name in self._written
        }

    def fits(self, saved: Mapping[str, Array], length: int) -> bool:
        """Whether states match those that `save` returns for a number of tokens.

        Args:
            saved: States from another process.
            length: Number of tokens.
        """

        def shape(name: str) -> tuple[int, ...]:
            _, heads, *rest = self.states[name].shape
            return (heads, length, *rest[1:]) if name in self._growing else (heads, *rest)

        return saved.keys() == set(self._written) and all(
            (value.dtype, value.shape) == (self.states[name].dtype, shape(name))
            for name, value in saved.items()
        )

    def restore(self, row: int, start: int, saved: Mapping[str, Array], *, latest: bool) -> None:
        """Write the states that `save` returned into a slot.

        Args:
            row: Batch slot.
            start: Position of the first token.
            saved: States of a range of tokens.
            latest: Whether the range is the last to be written; earlier ranges do not write states of constant size.
        """
        for name, rows in saved.items():
            if name in self._growing:
                self.states[name][row, :, start : start + rows.shape[1]] = rows
            elif latest:
                self.states[name][row] = rows
        self._wrote(row)

    def exchange(self, one: int, other: int, one_length: int, other_length: int) -> None:
        """Swap two batch slots.

        Args:
            one: First batch slot.
            other: Second batch slot.
            one_length: Number of tokens that the first has run.
            other_length: Number of tokens that the second has run; 0 for a free slot.
        """
        moved = self.save(other, 0, other_length) if other_length else None
        for name, state in self.states.items():
            if name in self._growing:
                state[other, :, :one_length] = state[one, :, :one_length]
            elif name in self._written:
                state[other] = state[one]
            else:
                state[[one, other]] = state[[other, one]]
        for provider in self._providers:
            provider.exchange(one, other)
        self._wrote(other)
        if moved:
            self.restore(one, 0, moved, latest=True)

    def _wrote(self, row: int) -> None:
        if self.program.memory is not None:
            self.program.memory.written.add(row)

    def _one_call(
        self,
        pieces: Mapping[int, Piece],
        rows: Sequence[int],
        lengths: Sequence[int],
        width: int | None = None,
        kept: int = 1,
    ) -> dict[int, Array]:
        """Run one call of a given width, or of the longest piece's, with the smallest sufficient compute context."""
        widest = max([len(pieces[row].tokens) for row in rows])
        context = 0
        if self._has_comp_ctx:
            context = self.sizes.covering(lengths, max([pieces[row].stop for row in rows]))
        # An indivisible span may be longer than the width of a call.
        return self._call(pieces, rows, max(width or 0, widest), context, kept)

    def _call(
        self,
        pieces: Mapping[int, Piece],
        rows: Sequence[int],
        width: int,
        context: int,
        kept: int,
    ) -> dict[int, Array]:
        """Return the logits of each slot after its newest tokens, at most `kept` of them."""
        call = Call([pieces[row] for row in rows], rows, width, context, kept)
        inputs = token_inputs(call.pieces, width)
        for provide in self._providers:
            provide(call, inputs)
        outputs = self.program.run(inputs, rows)
        if self.sampler:
            for number, row in enumerate(rows):
                self.drawn[row] = self.sampler.sampled(outputs, number)
        if not self.returns_logits:
            return {}
        if self._drafted:
            hidden = outputs[self._drafted]
            for number, (row, piece) in enumerate(zip(rows, call.pieces, strict=True)):
                self.hidden[row] = hidden[number, : len(piece.tokens)]
        logits = outputs[self._output].astype(np.float32, copy=False)
        newest = {
            row: logits[place, : min(kept, len(pieces[row].tokens))]
            for place, row in enumerate(rows)
        }
        if not self.heads:
            return newest
        self.hidden |= {row: every[:, 1:] for row, every in newest.items()}
        return {row: every[:, 0] for row, every in newest.items()}


def _newest(logits: Mapping[int, Array]) -> dict[int, Array]:
    """Return the logits (vocab,) after the newest token of each slot."""
    return {row: found[-1] for row, found in logits.items()}
