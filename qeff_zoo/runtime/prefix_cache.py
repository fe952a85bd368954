# SPDX-License-Identifier: Apache-2.0
"""Common beginnings of prompts are computed once: states of whole blocks of tokens, kept under the tokens before them.

A block is one or several calls of prefill long, so that with the cache and without it a prompt is cut into the same
calls, and its answer is the same to the last bit. Tokens of answers were run one by one, so that blocks that have some
differ from a prompt's in their last digits: those are kept where that is asked for.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.runtime.multimodal_spans import MultimodalSpans
from qeff_zoo.runtime.state_cache import KeptStates, StateFiles, check_budget
from qeff_zoo.runtime.tokenizer import read_json
from qeff_zoo.versions import installed

#: Bytes that the prefix cache of a session may take, unless it is told otherwise.
PREFIX_CACHE_BYTES = 128 << 20

_KEY = 32  # bytes of a name
_LEAST = 16  # tokens of a block: what is smaller costs more to find than to compute


@dataclass(frozen=True, kw_only=True)
class PrefixCacheOptions:
    """What a session keeps of its prompts.

    Args:
        bytes: Memory; 0 for none, None for the usual.
        answers: Whether answers are kept too, for prompts that go on from them: the next turn of a chat.
        folder: Folder of the cache after the process ends; None for none.
    """

    bytes: int | None = None
    answers: bool = False
    folder: Path | None = None


def open_prefix_cache(
    package: Path, decoder: Decoder, choices: PrefixCacheOptions
) -> "PrefixCache":
    """Return the prefix cache of a session.

    Args:
        package: Its folder.
        decoder: Whose states.
        choices: Options of the caller.

    Raises:
        GenerationError: The choices do not go together, or not with the package or the machine.
    """
    if not (choices.answers or choices.folder):
        return PrefixCache(decoder, choices.bytes)
    asked = "prefix_cache_answers" if choices.answers else "prefix_cache_dir"
    if not decoder.movable:
        raise GenerationError(
            f"Package {str(package)!r} runs on a device that keeps its states, and {asked} is given; expected states "
            "that can be read and written. Leave it out."
        )
    if choices.bytes == 0:
        raise GenerationError(
            f"{asked} is given, and prefix_cache_bytes is 0; expected a prefix cache. Leave one of them out."
        )
    files = None
    if choices.folder is not None:
        manifest = read_json(package / "manifest.json")
        engines = manifest.get("target", {}).get("needs", {})  # distributions that compute
        terms = {
            "package": manifest.get("build_key"),
            "precision": [program["numerics"] for program in manifest.get("programs", ())],
            "layout": decoder.layout,
            "calls": "of prompts and answers" if choices.answers else "of prompts",
            "versions": {name: installed(name) for name in ("qeff-zoo", *engines)},
        }
        files = StateFiles(choices.folder, terms)
    return PrefixCache(decoder, choices.bytes, answers=choices.answers, files=files)


class PrefixCache:
    """States of blocks by their prefix, up to a budget of memory; the least recently used goes first.

    Args:
        decoder: Whose states.
        budget: Bytes; a budget below one block keeps nothing. None for the usual, of which less is kept where memory is
            scarce.
        answers: Whether blocks with tokens of answers are kept.
        files: Store of blocks beyond the end of the process.

    Raises:
        GenerationError: There cannot be such a budget.
    """

    def __init__(
        self,
        decoder: Decoder,
        budget: int | None = None,
        *,
        answers: bool = False,
        files: StateFiles | None = None,
    ) -> None:
        if budget is not None:
            check_budget(budget, sum(state.nbytes for state in decoder.states.values()))
        width = decoder.sizes.prefill_seq_len
        #: Tokens of a block.
        self.block = width * -(-_LEAST // width)
        self.answers = answers
        self._decoder = decoder
        self.kept = KeptStates(PREFIX_CACHE_BYTES if budget is None else budget, files)
        self._keeps = decoder.movable and decoder.size_of(self.block) <= self.kept.budget

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.kept.used

    def keys(
        self,
        tokens: Sequence[int],
        insets: MultimodalSpans | None = None,
        adapter: bytes = b"",
        known: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Return the keys of the cacheable blocks of some tokens, each over all content up to its end.

        Placeholders of all pictures are the same token: without the names of those, one's states would be another's.

        At least one token is left to be computed.

        Args:
            tokens: Token ids of a prompt, and perhaps of its answer.
            insets: Its pictures or sounds, if it has any.
            adapter: Digest of the one that they are run with; nothing for the model as it is.
            known: Names of the first blocks.
        """
        keys = [*known]
        if not self._keeps:
            return keys
        for start in range(len(keys) * self.block, len(tokens) - self.block, self.block):
            before = keys[-1] if keys else hashlib.blake2b(adapter, digest_size=_KEY).digest()
            digest = hashlib.blake2b(before, digest_size=_KEY)
            digest.update(np.array(tokens[start : start + self.block], np.int64).tobytes())
            if insets is not None:
                digest.update(insets.name(start, start + self.block))
            keys.append(digest.digest())
        return keys

    def place(self, done: int) -> int:
        """Return the number of the block that a token is in."""
        return done // self.block

    def restore(self, keys: Sequence[bytes], row: int, done: int) -> int:
        """Give a row the states of its prompt's blocks, as many as there are.

        Args:
            keys: Keys of its prompt.
            row: Row of the decoder.
            done: Tokens that it has.

        Returns:
            Tokens that it has now.
        """
        if done % self.block:
            return done
        first = last = done // self.block
        found = []
        while last < len(keys) and (states := self.kept.get(keys[last])) is not None:
            if not self._decoder.fits(states, self.block):
                self.kept.drop(keys[last])
                break
            found.append(states)
            last += 1
        for place, states in enumerate(found, first):
            self._decoder.restore(row, place * self.block, states, latest=place == last - 1)
        if found:
            self.kept.touch(keys[:last])
        return last * self.block

    def save(self, keys: Sequence[bytes], row: int, done: int, since: int | None = None) -> None:
        """Keep the block that a row has just completed.

        Args:
            keys: Keys of its tokens.
            row: Row of the decoder.
            done: Tokens that it has.
            since: Tokens that it had before the call: blocks that ended between are kept too, where all states have a
                row for each position. None for the block alone that ends here.
        """
        first = done - 1 if since is None or not self._decoder.only_grows else since
        for place in range(first // self.block + 1, done // self.block + 1):
            self._save(keys, row, place)

    def _save(self, keys: Sequence[bytes], row: int, place: int) -> None:
        if place > len(keys) or keys[place - 1] in self.kept:
            return
        if place > 1 and keys[place - 2] not in self.kept:  # gone, and this one out of reach
            return
        start = (place - 1) * self.block
        states = self._decoder.save(row, start, start + self.block)
        self.kept.put(keys[place - 1], states, keys[:place])
