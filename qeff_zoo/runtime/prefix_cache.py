# SPDX-License-Identifier: Apache-2.0
"""Common beginnings of prompts are computed once: states of whole blocks of tokens, kept under the tokens before them.

A block is one or several calls of prefill long, so that with the cache and without it a prompt is cut into the same
calls, and its answer is the same to the last bit.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.sights import Sights

_LEAST = 16  # tokens of a block: what is smaller costs more to find than to compute


class PrefixCache:
    """States of blocks by their prefix, up to a budget of memory; the least recently used goes first.

    Args:
        decoder: Whose states.
        budget: Bytes; a budget below one block keeps nothing.

    Raises:
        GenerationError: There cannot be such a budget.
    """

    def __init__(self, decoder: Decoder, budget: int) -> None:
        if budget < 0:
            raise GenerationError(
                f"The prefix cache cannot take {budget!r} bytes; expected 0 for none, or more. Change "
                "prefix_cache_bytes."
            )
        width = decoder.sizes.prefill_seq_len
        #: Tokens of a block.
        self.block = width * -(-_LEAST // width)
        #: Bytes in use.
        self.used = 0
        self._decoder, self._budget = decoder, budget
        self._keeps = decoder.movable and decoder.size_of(self.block) <= budget
        self._blocks: OrderedDict[bytes, dict[str, Array]] = (
            OrderedDict()
        )  # least recently used first

    def keys(
        self, prompt: Sequence[int], sights: Sights | None = None, adapter: bytes = b""
    ) -> list[bytes]:
        """Name the blocks of a prompt that can be kept, each by all tokens and all pictures up to its end.

        Placeholders of all pictures are the same token: without the pictures' names, one's states would be another's.

        At least one token of the prompt is left to be computed.

        Args:
            prompt: Token ids.
            sights: Its pictures, if it has any.
            adapter: Digest of the one that they are run with; nothing for the model as it is.
        """
        keys: list[bytes] = []
        if not self._keeps:
            return keys
        digest = hashlib.blake2b(adapter, digest_size=32)
        for start in range(0, len(prompt) - self.block, self.block):
            digest.update(np.array(prompt[start : start + self.block], np.int64).tobytes())
            if sights is not None:
                digest.update(sights.name(start, start + self.block))
            keys.append(digest.digest())
        return keys

    def place(self, done: int) -> int:
        """Return the number of the block that a token is in."""
        return done // self.block

    def restore(self, keys: Sequence[bytes], row: int, done: int) -> int:
        """Give a row the states of its prompt's blocks, as many as there are.

        Args:
            keys: Of its prompt.
            row: Of the decoder.
            done: Tokens that it has.

        Returns:
            Tokens that it has now.
        """
        if done % self.block:
            return done
        first = last = done // self.block
        while last < len(keys) and keys[last] in self._blocks:
            last += 1
        for place in range(first, last):
            states = self._blocks[keys[place]]
            self._decoder.restore(row, place * self.block, states, latest=place == last - 1)
        if last > first:
            self._touch(keys[:last])
        return last * self.block

    def save(self, keys: Sequence[bytes], row: int, done: int) -> None:
        """Keep the block that a row has just completed.

        Args:
            keys: Of its prompt.
            row: Of the decoder.
            done: Tokens that it has.
        """
        place, rest = divmod(done, self.block)
        if rest or not 0 < place <= len(keys) or keys[place - 1] in self._blocks:
            return
        if place > 1 and keys[place - 2] not in self._blocks:  # gone, and this one out of reach
            return
        states = self._decoder.save(row, done - self.block, done)
        self._blocks[keys[place - 1]] = states
        self.used += _size(states)
        self._touch(keys[:place])
        while self.used > self._budget:
            _, dropped = self._blocks.popitem(last=False)
            self.used -= _size(dropped)

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Mark a prefix as used, its beginning last: without that the rest cannot be found."""
        for key in reversed(keys):
            self._blocks.move_to_end(key)


def _size(states: dict[str, Array]) -> int:
    return sum(state.nbytes for state in states.values())
