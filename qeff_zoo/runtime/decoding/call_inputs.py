# SPDX-License-Identifier: Apache-2.0
"""Inputs of a decoder's calls: tokens and positions, and a provider for each further input that a program has.

Providers are chosen once, by the names of a program's inputs, so that a call does nothing for inputs that it lacks.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from qeff_zoo.runtime.decoding.adapters import Adapters
from qeff_zoo.runtime.decoding.device_sampling import DeviceSampler, Drawing
from qeff_zoo.runtime.decoding.multimodal_spans import MultimodalSpans, Views
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sizes import DecoderSizes

PADDING = -1
#: Suffix of the names of image inputs.
PIXELS = "pixel_values"
#: Inputs with the length of the compute context, and with the number of tokens whose logits are returned.
COMP_CTX, KEPT = "comp_ctx_lengths", "num_logits_to_keep"
#: Prefix of inputs with one number per position of the context.
OF_CONTEXT = "of_context."
#: Input with the mask of the encoder's states.
SOURCE = "encoder_attention_mask"
#: Hidden states from which drafts are made.
HIDDEN = "hidden_states"
#: Input with positions of tokens for a rotary embedding with several axes; the axes come first.
AXES = "rope_positions"
#: Input with the image tiles that a token attends to, in programs with cross-attention to images.
_TILES = "cross_attention_mask"
#: Inputs and sizes of images or audio: the features of each token, and the number of features.
_INDICES, _ROWS = ("image_index", "audio_index"), ("image_rows", "audio_rows")

Inputs: TypeAlias = dict[str, Array]


class Piece(NamedTuple):
    """Tokens of one batch slot in one call.

    Args:
        tokens: Token ids, at least one.
        start: Position of the first token.
        spans: Images or audio of the slot's prompt, if any.
        slot: Adapter slot; 0 for the base model.
        source: Number of tokens in the encoder's text.
        hidden: Hidden states (tokens, size), for a draft layer.
        drawing: Sampling state, for a program that samples on the device; None for greedy decoding.
    """

    tokens: Sequence[int]
    start: int
    spans: MultimodalSpans | None = None
    slot: int = 0
    source: int = 0
    hidden: Array | None = None
    drawing: Drawing | None = None

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)


class Call(NamedTuple):
    """One call of a program.

    Args:
        pieces: Tokens of each batch slot.
        rows: Batch slots.
        width: Number of tokens of each slot, with padding.
        context: Number of positions that the call reads; 0 for a program without compute contexts.
        kept: Number of newest tokens of each slot whose logits are returned.
    """

    pieces: Sequence[Piece]
    rows: Sequence[int]
    width: int
    context: int
    kept: int


class Provider:
    """Base class of providers: each adds its inputs to those of a call.

    Args:
        program: Program of the calls.
        sizes: Sizes of the program.
        name: Name of the input.
    """

    def __init__(self, program: Program, sizes: DecoderSizes, name: str) -> None:
        self.name, self.shape = name, program.inputs[name].shape
        self.sizes = sizes

    def __call__(self, call: Call, inputs: Inputs) -> None:
        """Add the inputs of a call."""
        raise NotImplementedError

    def exchange(self, one: int, other: int) -> None:
        """Follow two batch slots that have been swapped."""


class _ComputeContext(Provider):
    def __call__(self, call: Call, inputs: Inputs) -> None:
        inputs[self.name] = np.zeros(call.context, np.int64)


class _KeptLogits(Provider):
    def __call__(self, call: Call, inputs: Inputs) -> None:
        inputs[self.name] = np.zeros(call.kept, np.int64)


class _Features(Provider):
    """The index of each token's features, and all features of a call, or one of zeros."""

    def __init__(self, program: Program, sizes: DecoderSizes, name: str) -> None:
        super().__init__(program, sizes, name)
        self._widths = {
            name: tuple(map(int, program.inputs[name].shape[1:])) for name in feature_names(program)
        }

    def __call__(self, call: Call, inputs: Inputs) -> None:
        index, count = np.full((len(call.pieces), call.width), -1, np.int64), 0
        rows: dict[str, list[Array]] = {name: [] for name in self._widths}
        for row, piece in enumerate(call.pieces):
            if piece.spans is None:
                continue
            where, features = piece.spans.between(piece.start, piece.stop)
            index[row, where] = np.arange(count, count + len(where))
            count += len(where)
            for name, several in rows.items():
                several.append(features[name])
        inputs[self.name] = index
        for name, several in rows.items():
            empty = [np.zeros((1, *self._widths[name]), np.float32)]
            inputs[name] = np.concatenate(several if count else empty)


class _RawImages(Provider):
    """The index of each token's image features, and the images that the program itself encodes, if a call has any."""

    def __call__(self, call: Call, inputs: Inputs) -> None:
        index = inputs[self.name] = np.full((1, call.width), -1, np.int64)
        (piece,) = call.pieces
        if piece.spans is None:
            return
        where, _ = piece.spans.between(piece.start, piece.stop)
        first = np.searchsorted(piece.spans.places, piece.start)
        index[0, where] = first + np.arange(len(where))
        (image,) = piece.spans.parts
        if len(where):
            inputs |= image.features


def _of_features(program: Program, sizes: DecoderSizes, name: str) -> Provider:
    return (_Features if feature_names(program) else _RawImages)(program, sizes, name)


class _RotaryPositions(Provider):
    """Rotary positions of tokens, which without images equal their positions."""

    def __call__(self, call: Call, inputs: Inputs) -> None:
        axes = int(self.shape[0])
        positions = np.repeat(np.maximum(inputs["position_ids"], 0)[None], axes, axis=0)
        for row, piece in enumerate(call.pieces):
            if piece.spans is not None:
                rotary = piece.spans.positions(piece.start, piece.stop)
                positions[:, row, : rotary.shape[1]] = rotary
        inputs[self.name] = positions


class _SourceMask(Provider):
    def __call__(self, call: Call, inputs: Inputs) -> None:
        mask = np.zeros((len(call.pieces), self.sizes.encoder_ctx_len), np.int64)
        for row, piece in enumerate(call.pieces):
            mask[row, : piece.source] = 1
        inputs[self.name] = mask


class _TokenTypes(Provider):
    """1 at the positions of tokens with bidirectional attention."""

    def __call__(self, call: Call, inputs: Inputs) -> None:
        types = np.zeros((len(call.pieces), self.sizes.ctx_len), np.int64)
        for row, piece in enumerate(call.pieces):
            if piece.spans is not None:
                types[row, piece.spans.together] = 1
        inputs[self.name] = types


class _HiddenStates(Provider):
    def __call__(self, call: Call, inputs: Inputs) -> None:
        hidden = np.zeros((len(call.pieces), call.width, int(self.shape[2])), np.float32)
        for row, piece in enumerate(call.pieces):
            hidden[row, : len(piece.tokens)] = piece.hidden
        inputs[self.name] = hidden


class _ImageTiles(Provider):
    """The tiles that each token attends to; writes the images of batch slots into their states."""

    def __init__(self, program: Program, sizes: DecoderSizes, name: str) -> None:
        super().__init__(program, sizes, name)
        self._memory = program.memory
        self._kept = [state.name for state in program.states if not state.written]
        #: Images in the states of each batch slot.
        self._viewed: dict[int, MultimodalSpans] = {}

    def __call__(self, call: Call, inputs: Inputs) -> None:
        most = self.sizes.max_num_images
        mask = np.full((len(call.pieces), call.width, most, self.shape[3]), -1)
        for number, (row, piece) in enumerate(zip(call.rows, call.pieces, strict=True)):
            if piece.spans is not self._viewed.get(row):
                self._write(row, piece.spans)
            if isinstance(piece.spans, Views):
                tokens = len(piece.tokens)
                mask[number, :tokens] = piece.spans.tile_mask(piece.start, piece.stop, most)
        inputs[self.name] = mask

    def _write(self, row: int, spans: MultimodalSpans | None) -> None:
        """Write the keys and values of images into a batch slot; zeros without an image."""
        assert self._memory is not None
        self._viewed.pop(row, None)
        if spans is None:
            for name in self._kept:
                self._memory[name][row] = 0
        else:
            for number, part in enumerate(spans.parts):
                for name, rows in part.features.items():
                    there = self._memory[name][row, :, number]
                    there[:] = rows.reshape(there.shape)
            self._viewed[row] = spans
        self._memory.written.add(row)

    def exchange(self, one: int, other: int) -> None:
        rows = {one: other, other: one}
        self._viewed = {rows.get(row, row): views for row, views in self._viewed.items()}


class _AdapterInputs(Provider):
    """Inputs of LoRA adapters.

    Args:
        adapters: Adapters of the session.
    """

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    def __call__(self, call: Call, inputs: Inputs) -> None:
        inputs |= self._adapters.given([piece.slot for piece in call.pieces], call.rows)


class _SamplerInputs(Provider):
    """Inputs of a program that samples on the device.

    Args:
        sampler: Sampler of the program.
    """

    def __init__(self, sampler: DeviceSampler) -> None:
        self._sampler = sampler

    def __call__(self, call: Call, inputs: Inputs) -> None:
        drawings = [piece.drawing for piece in call.pieces]
        inputs |= self._sampler.given(drawings, inputs["input_ids"], inputs["position_ids"])


#: Providers by the name of an input, or by the prefix of its name.
_PROVIDERS: Mapping[str, Callable[[Program, DecoderSizes, str], Provider]] = MappingProxyType(
    {
        COMP_CTX: _ComputeContext,
        KEPT: _KeptLogits,
        **dict.fromkeys(_INDICES, _of_features),
        AXES: _RotaryPositions,
        SOURCE: _SourceMask,
        _TILES: _ImageTiles,
        OF_CONTEXT: _TokenTypes,
        HIDDEN: _HiddenStates,
    }
)


def providers_of(
    program: Program, sizes: DecoderSizes, adapters: Adapters, sampler: DeviceSampler | None
) -> list[Provider]:
    """Return the providers of a program's inputs besides tokens and positions.

    Args:
        program: Program of the calls.
        sizes: Sizes of the program.
        adapters: Adapters of the session.
        sampler: Sampler of a program that samples on the device; None for other programs.
    """
    kinds = {name: OF_CONTEXT if name.startswith(OF_CONTEXT) else name for name in program.inputs}
    providers = [
        _PROVIDERS[kind](program, sizes, name) for name, kind in kinds.items() if kind in _PROVIDERS
    ]
    if adapters.are_taken:
        providers.append(_AdapterInputs(adapters))
    if sampler:
        providers.append(_SamplerInputs(sampler))
    return providers


def feature_names(program: Program) -> list[str]:
    """Return inputs with image or audio features: features that replace token embeddings first, then others."""
    return [
        name for name, value in program.inputs.items() if value.shape and value.shape[0] in _ROWS
    ]


def token_inputs(pieces: Sequence[Piece], width: int) -> Inputs:
    """Return the token ids and positions of a call, padded to its width."""
    if width == 1:  # faster, for decode calls
        return {
            "input_ids": np.array([piece.tokens for piece in pieces], np.int64),
            "position_ids": np.array([[piece.start] for piece in pieces], np.int64),
        }
    input_ids = np.zeros((len(pieces), width), np.int64)
    position_ids = np.full((len(pieces), width), PADDING, np.int64)
    for row, piece in enumerate(pieces):
        count = len(piece.tokens)
        input_ids[row, :count] = piece.tokens
        position_ids[row, :count] = np.arange(piece.start, piece.stop)
    return {"input_ids": input_ids, "position_ids": position_ids}
