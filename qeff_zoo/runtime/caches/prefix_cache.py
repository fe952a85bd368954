# SPDX-License-Identifier: Apache-2.0
"""Prefix cache: states of whole blocks of tokens, keyed by all tokens up to their end, for shared prefixes of prompts.

Generated text is bit for bit the same with and without the cache. A block therefore has 16 tokens if the program
computes the same bits in calls of other lengths (`Decoder.split`) and all states have an entry for each position. Else
it is one or several prefill calls long, so that a prompt is split into the same calls.

Generated tokens were run one by one, so that blocks with such tokens differ from those of a prompt in the last digits
of float32. They are cached by default if nothing amplifies that difference: activations rounded to int8 do.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.caches.state_cache import KeptStates, StateFiles, check_budget
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.multimodal_spans import MultimodalSpans
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
        answers: Whether generated tokens are cached, too, for prompts that continue them: the next turn of a chat.
            "possible" if they are cached wherever a prefix cache is possible; None for packages that compute in
            float32.
        folder: Folder for cached blocks that outlive the process; None for none.
    """

    bytes: int | None = None
    answers: bool | Literal["possible"] | None = None
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
    if choices.answers in (None, "possible"):
        possible = decoder.movable and choices.bytes != 0
        kept = possible and (
            choices.answers == "possible" or _computes_in_float32(package, decoder)
        )
        choices = replace(choices, answers=kept)
    if not (choices.answers or choices.folder):
        return PrefixCache(decoder, choices.bytes)
    option = "prefix_cache_answers" if choices.answers else "prefix_cache_dir"
    if not decoder.movable:
        raise GenerationError(
            f"Package {str(package)!r} runs on a device that keeps its states, and {option} is given; expected states "
            "that can be read and written. Leave it out."
        )
    if choices.bytes == 0:
        raise GenerationError(
            f"{option} is given, and prefix_cache_bytes is 0; expected a prefix cache. Leave one of them out."
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


def _computes_in_float32(package: Path, decoder: Decoder) -> bool:
    """Whether neither activations nor states are rounded, so that results of two calls differ in their last digits."""
    programs = read_json(package / "manifest.json").get("programs", ())
    numerics = [Numerics.from_dict(program["numerics"]) for program in programs]
    exact = all(
        numeric.activations == "float32" and not numeric.int8_activations for numeric in numerics
    )
    return exact and all(state.dtype == np.float32 for state in decoder.states.values())


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
        width = decoder.split if decoder.only_grows else decoder.sizes.prefill_seq_len
        #: Number of tokens in a block.
        self.block = width * -(-_LEAST // width)
        #: Minimum number of tokens left to compute: see `Decoder.split`.
        self._rest = 1 if width == decoder.sizes.prefill_seq_len else 2
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
        spans: MultimodalSpans | None = None,
        adapter: bytes = b"",
        known: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Return the keys of the whole blocks of tokens, each over all content up to its end.

        Images share one placeholder token, so that keys include the digests of images.

        Args:
            tokens: Token ids of a prompt, with or without generated tokens.
            spans: Images or audio of the prompt, if any.
            adapter: Digest of the LoRA adapter; empty for the base model.
            known: Keys of the first blocks.
        """
        keys = [*known]
        if not self._keeps:
            return keys
        for start in range(len(keys) * self.block, len(tokens) - self.block + 1, self.block):
            before = keys[-1] if keys else hashlib.blake2b(adapter, digest_size=_KEY).digest()
            digest = hashlib.blake2b(before, digest_size=_KEY)
            digest.update(np.array(tokens[start : start + self.block], np.int64).tobytes())
            if spans is not None:
                digest.update(spans.name(start, start + self.block))
            keys.append(digest.digest())
        return keys

    def place(self, done: int) -> int:
        """Return the number of the block with a token."""
        return done // self.block

    def restore(
        self,
        keys: Sequence[bytes],
        row: int,
        done: int,
        length: int,
        spans: MultimodalSpans | None = None,
    ) -> int:
        """Restore the states of cached blocks of a prompt in a batch slot.

        Args:
            keys: Keys of the prompt.
            row: Batch slot of the decoder.
            done: Number of tokens that the slot has run.
            length: Number of tokens of the prompt: at least one is left to compute.
            spans: Images or audio of the prompt, if any: spans that must be in one call are restored whole.

        Returns:
            Number of tokens that the slot has now.
        """
        if done % self.block:
            return done
        first = last = done // self.block
        blocks = []
        most = min(len(keys), (length - self._rest) // self.block)
        while last < most and (states := self.kept.get(keys[last])) is not None:
            if not self._decoder.fits(states, self.block):
                self.kept.drop(keys[last])
                break
            blocks.append(states)
            last += 1
        while blocks and spans and spans.end(done, last * self.block) != last * self.block:
            blocks.pop()
            last -= 1
        for number, states in enumerate(blocks, first):
            self._decoder.restore(row, number * self.block, states, latest=number == last - 1)
        if blocks:
            self.kept.touch(keys[:last])
        return last * self.block

    def save(self, keys: Sequence[bytes], row: int, done: int, since: int) -> None:
        """Cache the blocks that a batch slot has just completed.

        Args:
            keys: Keys of its tokens.
            row: Batch slot of the decoder.
            done: Number of tokens that the slot has run.
            since: Number of tokens before the call: blocks that ended in between are cached, too, if all states have
                an entry for each position.
        """
        first = since if self._decoder.only_grows else done - 1
        numbers = range(first // self.block, min(done // self.block, len(keys)))
        if numbers and (
            not numbers[0] or keys[numbers[0] - 1] in self.kept
        ):  # else dropped: unreachable
            fresh = {
                keys[place]: self._decoder.save(row, place * self.block, (place + 1) * self.block)
                for place in numbers
                if keys[place] not in self.kept
            }
            self.kept.put(fresh, keys[: numbers[-1] + 1])
