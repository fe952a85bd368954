# SPDX-License-Identifier: Apache-2.0
"""Block attention (arXiv 2409.15355): passages that are computed once, each by itself, and put together in any order.

A passage is computed at position 0 and sees itself alone. Its keys are then turned to where a prompt has it, and what
comes after all passages sees everything. So what a passage costs is paid once, whatever stands before it; a model that
was not tuned for this answers less well.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.runtime.rope_shift import Turn, turns_of
from qeff_zoo.runtime.state_cache import KeptStates, States


class Passages:
    """Passages that were computed, kept beside the blocks of the prefix cache and under its budget.

    Args:
        decoder: Whose states; row 0 is used.
        folder: Folder of the package.
        kept: Cache of their states.

    Raises:
        GenerationError: The model's keys cannot be turned.
    """

    def __init__(self, decoder: Decoder, folder: Path, kept: KeptStates) -> None:
        self.decoder, self.kept = decoder, kept
        self._turns: Mapping[str, Turn] = turns_of(decoder, folder)

    def turned(self, states: States, by: int) -> States:
        """Return a passage's states as they are that many positions farther."""
        return {
            name: self._turns[name](state, by) if name in self._turns else state
            for name, state in states.items()
        }


class Placing:
    """The passages of one request, on their way into its row.

    Args:
        passages: All that are known.
        prompt: Token ids, which begin with the passages'.
        lengths: Lengths of the documents.
        adapter: Digest of the one that they are run with.
    """

    def __init__(
        self, passages: Passages, prompt: Sequence[int], lengths: Sequence[int], adapter: bytes
    ) -> None:
        self._passages = passages
        ends = np.cumsum([0, *lengths]).tolist()
        self._tokens = [prompt[start:stop] for start, stop in pairwise(ends)]
        self._keys = [_key(tokens, adapter) for tokens in self._tokens]
        self._found: dict[bytes, States] = {}

    def look(self) -> int:
        """Take what is known by now; return how many tokens more that is."""
        before = self._count(self._found)
        for key in self._keys:
            if key not in self._found and (states := self._passages.kept.get(key)) is not None:
                self._found[key] = states
                self._passages.kept.touch([key])
        return self._count(self._found) - before

    @property
    def key(self) -> bytes | None:
        """Name of the first passage that is missing; None when all are there."""
        return next((key for key in self._keys if key not in self._found), None)

    @property
    def next(self) -> Sequence[int]:
        """Tokens of the first passage that is missing."""
        return self._tokens[self._keys.index(self.key)] if self.key else ()

    @property
    def left(self) -> int:
        """Tokens of passages that are missing."""
        return self._count({*self._keys} - self._found.keys())

    def save(self, row: int) -> None:
        """Keep the first passage that is missing, which a row has just run."""
        key, tokens = self.key, self.next
        assert key is not None
        self._found[key] = self._passages.decoder.save(row, 0, len(tokens))
        self._passages.kept.put(key, self._found[key], [key])

    def place(self, row: int) -> int:
        """Write all passages into a row, one after another; return how many tokens these are."""
        at = 0
        for key, tokens in zip(self._keys, self._tokens, strict=True):
            states = self._passages.turned(self._found[key], at)
            self._passages.decoder.restore(row, at, states, latest=True)
            at += len(tokens)
        return at

    def _count(self, keys: Mapping[bytes, States] | set[bytes]) -> int:
        """Return the tokens of passages, each once however often the prompt has it."""
        return sum(len(self._tokens[self._keys.index(key)]) for key in keys)


def _key(tokens: Sequence[int], adapter: bytes) -> bytes:
    digest = hashlib.blake2b(
        np.array(tokens, np.int64).tobytes(), digest_size=32, person=b"passage"
    )
    digest.update(adapter)
    return digest.digest()
