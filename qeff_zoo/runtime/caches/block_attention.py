# SPDX-License-Identifier: Apache-2.0
"""Block attention (arXiv 2409.15355): documents computed once, independently, and combined in any order.

A document is computed at position 0 and attends to itself alone. Its keys are then rotated to its position in the
prompt, and tokens after all documents attend to everything. The cost of a document is thus paid once, independent of
preceding text; a model that was not fine-tuned for block attention loses accuracy.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from qeff_zoo.runtime.caches.rope_shift import Turn, turns_of
from qeff_zoo.runtime.caches.state_cache import KeptStates, States
from qeff_zoo.runtime.decoding.decoder import Decoder


class DocumentCache:
    """Computed documents, stored with the blocks of the prefix cache and within its budget.

    Args:
        decoder: Decoder of the states; batch slot 0 is used.
        folder: Folder of the package.
        kept: Cache of the documents' states.

    Raises:
        GenerationError: If the model's keys cannot be rotated to other positions.
    """

    def __init__(self, decoder: Decoder, folder: Path, kept: KeptStates) -> None:
        self.decoder, self.kept = decoder, kept
        self._turns: Mapping[str, Turn] = turns_of(decoder, folder)

    def turned(self, states: States, by: int) -> States:
        """Return a document's states, rotated by a number of positions."""
        return {
            name: self._turns[name](state, by) if name in self._turns else state
            for name, state in states.items()
        }


class Placing:
    """Placement of one request's documents in its batch slot.

    Args:
        document_cache: Computed documents.
        prompt: Token ids, which begin with the documents.
        lengths: Lengths of the documents.
        adapter: Digest of the request's adapter.
    """

    def __init__(
        self,
        document_cache: DocumentCache,
        prompt: Sequence[int],
        lengths: Sequence[int],
        adapter: bytes,
    ) -> None:
        self._document_cache = document_cache
        ends = np.cumsum([0, *lengths]).tolist()
        self._tokens = [prompt[start:stop] for start, stop in pairwise(ends)]
        self._keys = [_key(tokens, adapter) for tokens in self._tokens]
        self._found: dict[bytes, States] = {}

    def look(self) -> int:
        """Take documents from the cache; return how many more tokens are available."""
        before = self._count(self._found)
        for key in self._keys:
            if (
                key not in self._found
                and (states := self._document_cache.kept.get(key)) is not None
            ):
                self._found[key] = states
                self._document_cache.kept.touch([key])
        return self._count(self._found) - before

    @property
    def key(self) -> bytes | None:
        """Key of the first missing document; None if all are available."""
        return next((key for key in self._keys if key not in self._found), None)

    @property
    def next(self) -> Sequence[int]:
        """Tokens of the first missing document."""
        return self._tokens[self._keys.index(self.key)] if self.key else ()

    @property
    def left(self) -> int:
        """Number of tokens in missing documents."""
        return self._count({*self._keys} - self._found.keys())

    def save(self, row: int) -> None:
        """Store the states of the first missing document, which a batch slot has just computed."""
        key, tokens = self.key, self.next
        assert key is not None
        self._found[key] = self._document_cache.decoder.save(row, 0, len(tokens))
        self._document_cache.kept.put({key: self._found[key]}, [key])

    def place(self, row: int) -> int:
        """Write all documents into a batch slot, one after another; return their number of tokens."""
        at = 0
        for key, tokens in zip(self._keys, self._tokens, strict=True):
            states = self._document_cache.turned(self._found[key], at)
            self._document_cache.decoder.restore(row, at, states, latest=True)
            at += len(tokens)
        return at

    def _count(self, keys: Mapping[bytes, States] | set[bytes]) -> int:
        """Return the number of tokens in documents, each counted once even if the prompt repeats it."""
        return sum(len(self._tokens[self._keys.index(key)]) for key in keys)


def _key(tokens: Sequence[int], adapter: bytes) -> bytes:
    digest = hashlib.blake2b(
        np.array(tokens, np.int64).tobytes(), digest_size=32, person=b"passage"
    )
    digest.update(adapter)
    return digest.digest()
