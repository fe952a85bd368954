# SPDX-License-Identifier: Apache-2.0
"""What answers are written of, as texts: an encoder reads each once, into the row of the decoder that writes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qeff_zoo.runtime.program import Array, Memory, Program
from qeff_zoo.runtime.sizes import EncoderSizes, batch_sizes

#: Token ids; or a sound, as the encoder takes it: (samples,), (frames, bins), or (bins, frames) of a window; or a
#: picture, (channels, height, width).
Source: TypeAlias = Sequence[int] | Array

_MASK, _LENGTHS, _PIXELS = "attention_mask", "lengths", "pixel_values"


@dataclass(frozen=True)
class Seen:
    """A picture and what is asked about it, as an encoder takes them.

    Args:
        tokens: Those in the places of the picture, and of the prompt.
        picture: (channels, height, width).
    """

    tokens: Sequence[int]
    picture: Array


class Sources:
    """Reads texts, sounds or pictures for a decoder.

    Args:
        encoder: Opened.
        memory: States of the decoder, those that an encoder writes among them.
    """

    def __init__(self, encoder: Program, memory: Memory | None) -> None:
        assert memory is not None
        self._encoder, self._memory = encoder, memory
        self._together = max(batch_sizes(encoder.specializations))
        self.input_name = next(name for name in encoder.inputs if name != _MASK)
        tensor = encoder.inputs[self.input_name]
        self._dtype = tensor.dtype
        #: Whether it reads what has any length; else windows, or pictures, of one size.
        self.any_length = _MASK in encoder.inputs
        sizes = tensor.shape[2:] if self.any_length else tensor.shape[1:]
        #: What an input of a sequence has besides; of windows and pictures all that there is.
        self.shape = tuple(map(int, sizes))
        #: How many it has read, and how long that took.
        self.count, self.seconds = 0, 0.0
        #: By row of the decoder, rows of what it asks that are there.
        self.lengths: dict[int, int] = {}

    @property
    def longest(self) -> int:
        """Tokens, samples or frames of one at most."""
        if not self.any_length:
            return self.shape[-1]
        return EncoderSizes.read(self._encoder.specializations).seq_lens[-1]

    def read(self, asked: Mapping[int, Source | Seen]) -> None:
        """Read texts, sounds or pictures, each into a row, which then writes of nothing else.

        Args:
            asked: By row, none of them empty.
        """
        sources: dict[int, Source] = {
            row: one.tokens if isinstance(one, Seen) else one for row, one in asked.items()
        }
        begun = time.perf_counter()
        rows = sorted(sources, key=lambda row: len(sources[row]))  # so that little is padding
        for start in range(0, len(rows), self._together):
            some = rows[start : start + self._together]
            longest = np.shape(sources[some[-1]])
            given = np.zeros((len(some), *longest), self._dtype)
            mask = np.zeros(given.shape[:2], np.int64)
            for place, row in enumerate(some):
                given[place, : len(sources[row])] = sources[row]
                mask[place, : len(sources[row])] = 1
            more = {_MASK: mask} if self.any_length else {}
            pixels = [one.picture for row in some if isinstance(one := asked[row], Seen)]
            more |= {_PIXELS: np.stack(pixels)} if pixels else {}
            found = dict(self._encoder.run({self.input_name: given, **more}))
            lengths = found.pop(_LENGTHS, mask.sum(1))
            self.lengths |= {row: int(lengths[place]) for place, row in enumerate(some)}
            for name, value in found.items():
                for place, row in enumerate(some):
                    self._memory[name][row, :, : value.shape[2]] = value[place]
            self._memory.written.update(some)
        self.count += len(rows)
        self.seconds += time.perf_counter() - begun
