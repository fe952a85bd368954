# SPDX-License-Identifier: Apache-2.0
"""The calls of a text-generation program: tokens at positions in, logits out.

Where the program lets a call say how many rows of the cache it reads, it reads the first rows only: the smallest
compute context that the package has for such a call and that holds all tokens of its rows. Its mask would hide the
others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.adapters import Adapters
from qeff_zoo.runtime.device_sampling import DeviceSampler, Drawing, Sampled
from qeff_zoo.runtime.grammar import Grammar
from qeff_zoo.runtime.multimodal_spans import MultimodalSpans, Views
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sampling import Sampling
from qeff_zoo.runtime.sizes import DecoderSizes

PADDING = -1
#: Begins names of inputs that have one number to a position of the context.
OF_CONTEXT = "of_context."
_SEEN, _KEPT = "comp_ctx_lengths", "num_logits_to_keep"
#: Says which rows of what an encoder has read are there.
SOURCE = "encoder_attention_mask"
#: What drafts read of each token; and what stands for it of a token that was drafted.
_HIDDEN, _DRAFTED = "hidden_states", "drafted_states"
#: Positions of tokens whose rotary embedding has several axes, which come first.
AXES = "rope_positions"
#: Which tiles of pictures a token sees, of a program that reads those by cross-attention.
_TILES = "cross_attention_mask"
#: Of pictures or sounds: each token's row of features, and how many rows there are.
_INDICES, _ROWS = ("image_index", "audio_index"), ("image_rows", "audio_rows")


@dataclass(frozen=True)
class Piece:
    """What one row gets in one call.

    Args:
        tokens: Token ids, at least one.
        start: Position of the first.
        insets: The pictures or sounds of the row's prompt, if it has any.
        slot: Slot of the row's adapter; 0 for the base model.
        source: Tokens of the text that the row writes of.
        hidden: (tokens, size), of a program that drafts from hidden states.
        drawing: How a program that draws tokens draws the next one; None for greedily.
    """

    tokens: Sequence[int]
    start: int
    insets: MultimodalSpans | None = None
    slot: int = 0
    source: int = 0
    hidden: Array | None = None
    drawing: Drawing | None = None

    @property
    def stop(self) -> int:
        """Position after the last."""
        return self.start + len(self.tokens)


class Decoder:
    """Plans the calls of a program. One call at a time: the states belong to the calls.

    Rows are what the states have: batch rows, or the slots of continuous batching. What an earlier
    request left in a row is never seen by a later one that starts at position 0.

    Args:
        program: Program of the task `text-generation`.
        adapters: Adapters of its session; None for the base model.
    """

    def __init__(self, program: Program, adapters: Adapters | None = None) -> None:
        self._adapters = Adapters(program) if adapters is None else adapters
        sizes = DecoderSizes.read(program.specializations)
        self._says_seen, self._says_kept = _SEEN in program.inputs, _KEPT in program.inputs
        if not self._says_seen:
            sizes = replace(sizes, comp_ctx_lengths_prefill=(), comp_ctx_lengths_decode=())
        self.program, self.sizes = program, sizes
        self._index = next((name for name in program.inputs if name in _INDICES), "")
        self._types = next((name for name in program.inputs if name.startswith(OF_CONTEXT)), "")
        #: What draws the tokens where the program does; None where it returns logits alone.
        self.sampler = DeviceSampler.of(program)
        #: By row, what it drew last; nothing where the host draws.
        self.drawn: dict[int, Sampled] = {}
        shape = (
            (None, None, self.sampler.vocab_size)
            if self.sampler
            else program.outputs["logits"].shape
        )
        self.vocab_size = int(shape[-1])
        #: Heads whose logits a call returns behind the model's own.
        self.heads = int(shape[2]) - 1 if len(shape) == 4 else 0
        #: By row, of the newest tokens that it ran, what drafts are made from, (tokens, …); nothing without any: hidden
        #: states (size,), or the logits of heads (heads, vocab).
        self.hidden: dict[int, Array] = {}
        self._growing = frozenset(state.name for state in program.states if state.grows)
        self._written = frozenset(state.name for state in program.states if state.written)
        #: Whether to forget a row's newest tokens is to write over them: all states have a row for each position.
        self.only_grows = self._growing == self._written
        #: By row, whose pictures it has, of a program that reads those by cross-attention.
        self._viewed: dict[int, MultimodalSpans] = {}

    @property
    def tells(self) -> bool:
        """Whether calls return logits; else the tokens alone that the program drew."""
        return "logits" in self.program.outputs

    def require_logits(self, what: str) -> None:
        """Refuse a program that does not return logits.

        Args:
            what: Needs that.

        Raises:
            GenerationError: The program returns no logits.
        """
        if not self.tells:
            raise GenerationError(
                f"The package draws tokens on its device and returns no logits; expected these for {what}. Build it "
                "without --include-sampler."
            )

    def check(self, sampling: Sampling, grammar: Grammar | None) -> None:
        """Refuse what a program that draws tokens itself cannot do, see `DeviceSampler.check`."""
        if self.sampler:
            self.sampler.check(sampling, grammar)

    @property
    def verifies(self) -> bool:
        """Whether a call may return logits after each of its tokens, as `verify` does."""
        return self._says_kept

    @property
    def states(self) -> Mapping[str, Array]:
        """The retained states by input name, rows first; nothing where the host cannot reach them."""
        return self.program.memory or {}

    def prefill(
        self, pieces: Mapping[int, Piece], *, padded: bool = False, context: int = 0
    ) -> dict[int, Array]:
        """Run prompt tokens: at most `prefill_seq_len` per row.

        Args:
            pieces: By row; rows without one stay as they are.
            padded: Make the call `prefill_seq_len` wide where the cache has room, as a program of fixed shapes is; the
                graph here takes any width, and padding costs as much as tokens.
            context: Read at least that many rows of the cache.

        Returns:
            Per row of `pieces` the logits after its last token, (vocab,); nothing where `tells` is not so.
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
        """Run one token per row; rows without a piece stay as they are.

        Args:
            pieces: By row.
            context: Read at least that many rows of the cache.
        """
        lengths = [n for n in self.sizes.comp_ctx_lengths_decode if n >= context]
        starts = {row: piece.start for row, piece in pieces.items()}
        logits: dict[int, Array] = {}
        for rows in self.program.together(starts, prefill=False):
            logits |= _newest(self._one_call(pieces, rows, lengths))
        return logits

    def verify(self, pieces: Mapping[int, Piece], *, context: int = 0) -> dict[int, Array]:
        """Run several tokens per row and return logits after each; rows without a piece stay as they are.

        Args:
            pieces: By row; those of fixed shapes have no more tokens than a decode call checks, the newest included.
            context: Read at least that many rows of the cache.

        Returns:
            Per row of `pieces` (tokens, vocab).

        Raises:
            GenerationError: The package was built without drafted tokens, or for fewer.
        """
        if not self.verifies:
            raise GenerationError(
                "The package returns the logits of one token a call; expected one that returns several. Build it with "
                "--num-speculative-tokens."
            )
        lengths = [n for n in self.sizes.comp_ctx_lengths_decode if n >= context]
        starts = {row: piece.start for row, piece in pieces.items()}
        logits: dict[int, Array] = {}
        for rows in self.verified_together(starts, max(len(one.tokens) for one in pieces.values())):
            kept = max(len(pieces[row].tokens) for row in rows)
            logits |= self._one_call(pieces, rows, lengths, kept=kept)
        return logits

    def verified_together(self, starts: Mapping[int, int], kept: int) -> list[list[int]]:
        """Cut rows into those that one call of `verify` takes.

        Args:
            starts: Row -> position of its first new token.
            kept: New tokens of a row at most.
        """
        return self.program.together(starts, prefill=True, kept=kept)

    @property
    def layout(self) -> list[list[int | str]]:
        """Of every state that can be read its name, type and sizes, whatever the number of rows and the context."""
        return [
            [one.name, str(self.states[one.name].dtype), *one.axes[1:]]
            for one in self.program.states
        ]

    @property
    def movable(self) -> bool:
        """Whether states can be read and written, which `save` and `exchange` need; `restore` writes alone."""
        return self.program.memory is not None and self.program.memory.is_current

    def size_of(self, length: int) -> int:
        """Return the bytes of what a row retains of `length` tokens, as `save` returns it."""
        return sum(
            state[0].nbytes * length // (self.sizes.ctx_len if name in self._growing else length)
            for name, state in self.states.items()
            if name in self._written
        )

    def save(self, row: int, start: int, stop: int) -> dict[str, Array]:
        """Copy what a row has retained of a stretch of its tokens.

        Args:
            row: Row that has run `stop` tokens, no more: a state of constant size is copied as it is.
            start: Position of the first token.
            stop: Position after the last.

        Returns:
            By state that calls write; of those that grow with the context (…, stop - start, …).
        """
        return {
            name: state[row, :, start:stop].copy() if name in self._growing else state[row].copy()
            for name, state in self.states.items()
            if name in self._written
        }

    def fits(self, saved: Mapping[str, Array], length: int) -> bool:
        """Whether states match those that `save` returns for so many tokens.

        Args:
            saved: States that come from elsewhere.
            length: Tokens of the stretch.
        """

        def shape(name: str) -> tuple[int, ...]:
            _, heads, *rest = self.states[name].shape
            return (heads, length, *rest[1:]) if name in self._growing else (heads, *rest)

        return saved.keys() == set(self._written) and all(
            (one.dtype, one.shape) == (self.states[name].dtype, shape(name))
            for name, one in saved.items()
        )

    def restore(self, row: int, start: int, saved: Mapping[str, Array], *, latest: bool) -> None:
        """Write what `save` returned into a row.

        Args:
            row: Any.
            start: Position of the first token.
            saved: States of a stretch of tokens.
            latest: Whether the stretch is the last that is written; of those before it, states that do not grow with
                the context are of no use.
        """
        for name, rows in saved.items():
            if name in self._growing:
                self.states[name][row, :, start : start + rows.shape[1]] = rows
            elif latest:
                self.states[name][row] = rows
        self._wrote(row)

    def exchange(self, one: int, other: int, one_length: int, other_length: int) -> None:
        """Swap two rows.

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
            elif name in self._written:
                state[other] = state[one]
            else:
                state[[one, other]] = state[[other, one]]
        rows = {one: other, other: one}
        self._viewed = {rows.get(row, row): views for row, views in self._viewed.items()}
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
        """Run one call of the given width, or the longest piece's, with the smallest sufficient context."""
        widest = max(len(pieces[row].tokens) for row in rows)
        held = max(pieces[row].start + len(pieces[row].tokens) for row in rows)
        seen = self.sizes.covering(lengths, held)
        # What must be whole may be longer than a call is wide.
        return self._call(pieces, rows, max(width or 0, widest), seen, kept)

    def _call(
        self,
        pieces: Mapping[int, Piece],
        rows: Sequence[int],
        width: int,
        seen: int,
        kept: int,
    ) -> dict[int, Array]:
        """Return per row the logits after its newest tokens, at most `kept` of them."""
        input_ids = np.zeros((len(rows), width), np.int64)
        position_ids = np.full((len(rows), width), PADDING, np.int64)
        for place, row in enumerate(rows):
            tokens, start = pieces[row].tokens, pieces[row].start
            input_ids[place, : len(tokens)] = tokens
            position_ids[place, : len(tokens)] = np.arange(start, start + len(tokens))
        inputs: dict[str, Array] = {"input_ids": input_ids, "position_ids": position_ids}
        if self._says_seen:
            inputs[_SEEN] = np.zeros(seen, np.int64)
        if self._says_kept:
            inputs[_KEPT] = np.zeros(kept, np.int64)
        inputs |= self._adapters.given([pieces[row].slot for row in rows], rows)
        if self._index:
            inputs |= self._shown([pieces[row] for row in rows], width)
        if AXES in self.program.inputs:
            inputs[AXES] = self._rotary([pieces[row] for row in rows], position_ids)
        if SOURCE in self.program.inputs:
            inputs[SOURCE] = np.zeros((len(rows), self.sizes.encoder_ctx_len), np.int64)
            for place, row in enumerate(rows):
                inputs[SOURCE][place, : pieces[row].source] = 1
        if _TILES in self.program.inputs:
            inputs[_TILES] = self._view({row: pieces[row] for row in rows}, width)
        if self._types:
            inputs[self._types] = np.zeros((len(rows), self.sizes.ctx_len), np.int64)
            for place, row in enumerate(rows):
                if (insets := pieces[row].insets) is not None:
                    inputs[self._types][place, insets.together] = 1
        if _HIDDEN in self.program.inputs:
            size = int(self.program.inputs[_HIDDEN].shape[2])
            inputs[_HIDDEN] = np.zeros((len(rows), width, size), np.float32)
            for place, row in enumerate(rows):
                inputs[_HIDDEN][place, : len(pieces[row].tokens)] = pieces[row].hidden
        if self.sampler:
            drawings = [pieces[row].drawing for row in rows]
            inputs |= self.sampler.given(drawings, input_ids, position_ids)
        outputs = self.program.run(inputs, rows)
        if self.sampler:
            self.drawn |= {
                row: self.sampler.sampled(outputs, place) for place, row in enumerate(rows)
            }
        if not self.tells:
            return {}
        hidden = outputs.get(_HIDDEN, outputs.get(_DRAFTED))
        if hidden is not None:
            self.hidden |= {
                row: hidden[place, : len(pieces[row].tokens)] for place, row in enumerate(rows)
            }
        logits = outputs["logits"].astype(np.float32, copy=False)
        found = {
            row: logits[place, : min(kept, len(pieces[row].tokens))]
            for place, row in enumerate(rows)
        }
        if not self.heads:
            return found
        self.hidden |= {row: every[:, 1:] for row, every in found.items()}
        return {row: every[:, 0] for row, every in found.items()}

    @property
    def feature_names(self) -> list[str]:
        """Inputs with image or audio features: those that take the place of tokens, then others."""
        return [name for name, one in self.program.inputs.items() if one.shape[0] in _ROWS]

    def _shown(self, pieces: Sequence[Piece], width: int) -> dict[str, Array]:
        """Return each token's row of features, and all rows of a call; one of zeros where it has none."""
        tensors, names = self.program.inputs, self.feature_names
        if not names:
            return self._pictured(*pieces, width=width)
        rows: dict[str, list[Array]] = {name: [] for name in names}
        index, count = np.full((len(pieces), width), -1, np.int64), 0
        for place, piece in enumerate(pieces):
            if piece.insets is None:
                continue
            where, found = piece.insets.between(piece.start, piece.stop)
            index[place, where] = np.arange(count, count + len(where))
            count += len(where)
            for name in names:
                rows[name].append(found[name])
        for name in names if not count else ():
            rows[name] = [np.zeros((1, *map(int, tensors[name].shape[1:])), np.float32)]
        return {self._index: index, **{name: np.concatenate(found) for name, found in rows.items()}}

    def _pictured(self, piece: Piece, *, width: int) -> dict[str, Array]:
        """Return each token's row of image features, and the images, if a call has any."""
        index = np.full((1, width), -1, np.int64)
        if piece.insets is None:
            return {self._index: index}
        where, _ = piece.insets.between(piece.start, piece.stop)
        index[0, where] = np.searchsorted(piece.insets.places, piece.start) + np.arange(len(where))
        (picture,) = piece.insets.parts
        return {self._index: index, **(picture.features if len(where) else {})}

    def _view(self, pieces: Mapping[int, Piece], width: int) -> Array:
        """Set the image features of rows, and return the tiles that their tokens attend to."""
        most = self.sizes.max_num_images
        seen = np.full((len(pieces), width, most, self.program.inputs[_TILES].shape[3]), -1)
        for place, (row, piece) in enumerate(pieces.items()):
            if piece.insets is not self._viewed.get(row):
                self._give_pictures(row, piece.insets)
            if isinstance(piece.insets, Views):
                tokens = len(piece.tokens)
                seen[place, :tokens] = piece.insets.seen(piece.start, piece.stop, most)
        return seen

    def _give_pictures(self, row: int, insets: MultimodalSpans | None) -> None:
        """Put the keys and values of an image into the row that attends to it; zeros without an image."""
        self._viewed.pop(row, None)
        if insets is None:
            for name in self.states.keys() - self._written:
                self.states[name][row] = 0
        else:
            for place, part in enumerate(insets.parts):
                for name, rows in part.features.items():
                    there = self.states[name][row, :, place]
                    there[:] = rows.reshape(there.shape)
            self._viewed[row] = insets
        self._wrote(row)

    def _rotary(self, pieces: Sequence[Piece], position_ids: Array) -> Array:
        """Return the rotary positions of a call's tokens, which without images are their positions."""
        axes = int(self.program.inputs[AXES].shape[0])
        positions = np.repeat(np.maximum(position_ids, 0)[None], axes, axis=0)
        for place, piece in enumerate(pieces):
            if piece.insets is not None:
                told = piece.insets.positions(piece.start, piece.stop)
                positions[:, place, : told.shape[1]] = told
        return positions


def _newest(logits: Mapping[int, Array]) -> dict[int, Array]:
    """Return of each row the logits (vocab,) after its newest token alone."""
    return {row: found[-1] for row, found in logits.items()}
