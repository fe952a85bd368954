# SPDX-License-Identifier: Apache-2.0
"""Prefix cache: states of whole blocks of tokens, keyed by all tokens up to their end, for shared prefixes of prompts.

A block is one or several prefill calls long, so that a prompt is split into the same calls with and without the
cache, and generated text is bit for bit the same. Generated tokens were run one by one, so that blocks with such
tokens differ from those of a prompt in the last digits: they are cached only if enabled.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.runtime.multimodal_spans import MultimodalSpans
from qeff_zoo.runtime.state_cache import KeptStates, StateFiles, check_budget
from qeff_zoo.versions import installed

#: Default size of a session's prefix cache in bytes.
PREFIX_CACHE_BYTES = 128 << 20

_KEY = 32  # bytes of a key
_LEAST = 16  # minimum tokens in a block: smaller ones cost more to look up than to compute


@dataclass(frozen=True, kw_only=True)
class PrefixCacheOptions:
    """Options of a session's prefix cache.

    Args:
        bytes: Maximum size in memory; 0 to disable the cache, None for the default.
        answers: Whether generated tokens are cached, too, for prompts that continue them: the next turn of a chat. None
            if they are cached wherever a prefix cache is possible.
        folder: Folder for cached blocks that outlive the process; None for none.
    """

    bytes: int | None = None
    answers: bool | None = False
    folder: Path | None = None


def open_prefix_cache(
    package: Path, decoder: Decoder, choices: PrefixCacheOptions
) -> "PrefixCache":
    """Return the prefix cache of a session.

    Args:
        package: Folder of the package.
        decoder: Decoder of the states.
        choices: Options of the caller.

    Raises:
        GenerationError: If options contradict one another, or are not supported by the package or the machine.
    """
    if choices.answers is None:
        choices = replace(choices, answers=decoder.movable and choices.bytes != 0)
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
        engines = manifest.get("target", {}).get("needs", {})  # distributions of the runtime
        terms = {
            "package": manifest.get("build_key"),
            "precision": [program["numerics"] for program in manifest.get("programs", ())],
            "layout": decoder.layout,
            "calls": "of prompts and answers" if choices.answers else "of prompts",
            "versions": {name: installed(name) for name in ("qeff-zoo", *engines)},
        }
        files = StateFiles(choices.folder, terms)
    return PrefixCache(decoder, choices.bytes, answers=bool(choices.answers), files=files)


class PrefixCache:
    """LRU cache of the states of blocks by prefix, within a memory budget.

    Args:
        decoder: Decoder of the states.
        budget: Maximum size in bytes; a budget below one block disables the cache. None for the default, of which
            less is used if memory is scarce.
        answers: Whether blocks with generated tokens are cached.
        files: Store of blocks that outlives the process.

    Raises:
        GenerationError: If the budget is invalid, or exceeds the memory.
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
        #: Number of tokens in a block.
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
        """Return the keys of the cacheable blocks of tokens, each over all content up to its end.

        Images share one placeholder token, so that keys include the digests of images.

        At least one token is left to compute.

        Args:
            tokens: Token ids of a prompt, with or without generated tokens.
            insets: Images or audio of the prompt, if any.
            adapter: Digest of the LoRA adapter; empty for the base model.
            known: Keys of the first blocks.
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
        """Return the number of the block with a token."""
        return done // self.block

    def restore(self, keys: Sequence[bytes], row: int, done: int) -> int:
        """Restore the states of cached blocks of a prompt in a batch slot.

        Args:
            keys: Keys of the prompt.
            row: Batch slot of the decoder.
            done: Number of tokens that the slot has run.

        Returns:
            Number of tokens that the slot has now.
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
        """Cache the blocks that a batch slot has just completed.

        Args:
            keys: Keys of its tokens.
            row: Batch slot of the decoder.
            done: Number of tokens that the slot has run.
            since: Number of tokens before the call: blocks that ended in between are cached, too, if all states have
                an entry for each position. None for only the block that ends here.
        """
        first = done - 1 if since is None or not self._decoder.only_grows else since
        for place in range(first // self.block + 1, done // self.block + 1):
            self._save(keys, row, place)

    def _save(self, keys: Sequence[bytes], row: int, place: int) -> None:
        if place > len(keys) or keys[place - 1] in self.kept:
            return
        if place > 1 and keys[place - 2] not in self.kept:  # dropped: this block is unreachable
            return
        start = (place - 1) * self.block
        states = self._decoder.save(row, start, start + self.block)
        self.kept.put(keys[place - 1], states, keys[:place])
