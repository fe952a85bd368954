# SPDX-License-Identifier: Apache-2.0
"""The texts that answers are written of: an encoder reads each once, into the row of the decoder that writes of it."""

from collections.abc import Mapping, Sequence

import numpy as np

from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sizes import EncoderSizes


class Sources:
    """Reads texts for a decoder.

    Args:
        encoder: Opened.
        memory: States of the decoder by name, rows first.
    """

    def __init__(self, encoder: Program, memory: Mapping[str, Array]) -> None:
        self._encoder, self._memory = encoder, memory
        self._sizes = EncoderSizes.read(encoder.specializations)

    @property
    def longest(self) -> int:
        """Tokens of a text at most."""
        return self._sizes.seq_lens[-1]

    def read(self, texts: Mapping[int, Sequence[int]]) -> None:
        """Read texts, each into a row, which then writes of nothing else.

        Args:
            texts: Token ids by row, at least one each.
        """
        rows = sorted(texts, key=lambda row: len(texts[row]))  # so that little is padding
        for start in range(0, len(rows), self._sizes.batch_size):
            some = rows[start : start + self._sizes.batch_size]
            width = len(texts[some[-1]])
            input_ids = np.zeros((len(some), width), np.int64)
            mask = np.zeros_like(input_ids)
            for place, row in enumerate(some):
                input_ids[place, : len(texts[row])] = texts[row]
                mask[place, : len(texts[row])] = 1
            found = self._encoder.run({"input_ids": input_ids, "attention_mask": mask})
            for name, value in found.items():
                for place, row in enumerate(some):
                    self._memory[name][row, :, :width] = value[place]
