# SPDX-License-Identifier: Apache-2.0
"""Encoder inputs: an encoder encodes each once, into the batch slot of the decoder that uses it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qeff_zoo.runtime.program import Array, Memory, Program
from qeff_zoo.runtime.sizes import EncoderSizes, batch_sizes

#: Token ids; or audio, as the encoder takes it: (samples,), (frames, bins), or (bins, frames) of a window; or an
#: image, (channels, height, width).
Source: TypeAlias = Sequence[int] | Array

_MASK, _LENGTHS, _PIXELS = "attention_mask", "lengths", "pixel_values"


@dataclass(frozen=True)
class ImagePrompt:
    """Image with a question about it, as encoder inputs.

    Args:
        tokens: Token ids of the image placeholders, and of the prompt.
        image: Array (channels, height, width).
    """

    tokens: Sequence[int]
    image: Array


class Sources:
    """Encoder of texts, audio or images for a decoder.

    Args:
        encoder: Encoder program, opened.
        memory: States of the decoder, including those that the encoder writes.
    """

    def __init__(self, encoder: Program, memory: Memory | None) -> None:
        assert memory is not None
        self._encoder, self._memory = encoder, memory
        self._together = max(batch_sizes(encoder.specializations))
        self.input_name = next(name for name in encoder.inputs if name != _MASK)
        tensor = encoder.inputs[self.input_name]
        self._dtype = tensor.dtype
        #: Whether inputs have any length; else they are windows, or images, of one size.
        self.any_length = _MASK in encoder.inputs
        sizes = tensor.shape[2:] if self.any_length else tensor.shape[1:]
        #: Axes of an input without the sequence; for windows and images all axes.
        self.shape = tuple(map(int, sizes))
        #: Number of encoded inputs, and the time for them.
        self.count, self.seconds = 0, 0.0
        #: Number of encoder states by batch slot of the decoder.
        self.lengths: dict[int, int] = {}

    @property
    def longest(self) -> int:
        """Maximum number of tokens, samples or frames of an input."""
        if not self.any_length:
            return self.shape[-1]
        return EncoderSizes.read(self._encoder.specializations).seq_lens[-1]

    def read(self, inputs: Mapping[int, Source | ImagePrompt]) -> None:
        """Encode texts, audio or images, each into a batch slot, in place of its previous input.

        Args:
            inputs: Inputs by batch slot, none of them empty.
        """
        sources: dict[int, Source] = {
            row: array.tokens if isinstance(array, ImagePrompt) else array
            for row, array in inputs.items()
        }
        begun = time.perf_counter()
        rows = sorted(sources, key=lambda row: len(sources[row]))  # to minimize padding
        for start in range(0, len(rows), self._together):
            some = rows[start : start + self._together]
            longest = np.shape(sources[some[-1]])
            given = np.zeros((len(some), *longest), self._dtype)
            mask = np.zeros(given.shape[:2], np.int64)
            for number, row in enumerate(some):
                given[number, : len(sources[row])] = sources[row]
                mask[number, : len(sources[row])] = 1
            more = {_MASK: mask} if self.any_length else {}
            pixels = [one.image for row in some if isinstance(one := inputs[row], ImagePrompt)]
            more |= {_PIXELS: np.stack(pixels)} if pixels else {}
            outputs = dict(self._encoder.run({self.input_name: given, **more}))
            lengths = outputs.pop(_LENGTHS, mask.sum(1))
            self.lengths |= {row: int(lengths[place]) for place, row in enumerate(some)}
            for name, value in outputs.items():
                for number, row in enumerate(some):
                    self._memory[name][row, :, : value.shape[2]] = value[number]
            self._memory.written.update(some)
        self.count += len(rows)
        self.seconds += time.perf_counter() - begun
