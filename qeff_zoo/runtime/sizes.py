# SPDX-License-Identifier: Apache-2.0
"""The sizes a package was specialized for, read from the specializations in its manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Specializations


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Of a text-generation package.

    Args:
        prefill_seq_len: Prompt tokens that one call takes.
        ctx_len: Cache rows: prompt and generated tokens together.
        batch_size: Rows of one call, without continuous batching.
        full_batch_size: Cache slots of continuous batching; None without.
        comp_ctx_lengths_prefill: How many of the first rows of the cache a prefill call may read, ascending; nothing
            where a call finds by itself what it has to read.
        comp_ctx_lengths_decode: The same for decode calls.
        num_speculative_tokens: Drafted tokens that a decode call may check, ascending.
        decodes: Whether it was specialized for decode calls, and not for prompts alone.
        encoder_ctx_len: Tokens of the longest text that it writes of; 0 where it reads its own alone.
        max_num_images: Pictures of a prompt at most, where they are a state; else 0.
    """

    prefill_seq_len: int
    ctx_len: int
    batch_size: int
    full_batch_size: int | None
    comp_ctx_lengths_prefill: tuple[int, ...] = ()
    comp_ctx_lengths_decode: tuple[int, ...] = ()
    num_speculative_tokens: tuple[int, ...] = ()
    decodes: bool = True
    encoder_ctx_len: int = 0
    max_num_images: int = 0

    @property
    def rows(self) -> int:
        """Requests that are served at a time."""
        return self.full_batch_size or self.batch_size

    def covering(self, lengths: Sequence[int], tokens: int) -> int:
        """Return the smallest of ascending lengths that holds that many tokens, or the whole context."""
        return next((length for length in lengths if length >= tokens), self.ctx_len)

    @classmethod
    def read(cls, specializations: Specializations) -> "DecoderSizes":
        """Read the specializations `Prefill` and `Decode`; without the former, decoding prefills token by token."""
        decodes = _of_kind(specializations, "Decode")
        prefills = _of_kind(specializations, "Prefill") or decodes
        first = next(iter(decodes or prefills), {})
        decode = _required(first, "Decode", ("batch_size", "seq_len", "ctx_len"))
        slots = decode.get("full_batch_size")
        return cls(
            prefill_seq_len=int(prefills[0]["seq_len"]),
            ctx_len=int(decode["ctx_len"]),
            batch_size=int(decode["batch_size"]),
            full_batch_size=int(slots) if slots else None,
            comp_ctx_lengths_prefill=_compute_contexts(prefills),
            comp_ctx_lengths_decode=_compute_contexts(decodes),
            num_speculative_tokens=tuple(
                sorted({int(one.get("num_logits_to_keep", 1)) - 1 for one in decodes} - {0})
            ),
            decodes=bool(decodes),
            encoder_ctx_len=int(decode.get("encoder_ctx_len", 0)),
            max_num_images=int(decode.get("max_num_images", 0)),
        )


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Of a package that reads whole texts.

    Args:
        batch_size: Texts of one call.
        seq_lens: Sequence lengths, ascending.
    """

    batch_size: int
    seq_lens: tuple[int, ...]

    def covering(self, tokens: int) -> int:
        """Return the shortest sequence length that holds that many tokens."""
        return next(length for length in self.seq_lens if length >= tokens)

    @classmethod
    def read(cls, specializations: Specializations) -> "EncoderSizes":
        """Read one specialization per sequence length."""
        wanted = ("batch_size", "seq_len")
        every = [_required(entry["symbols"], entry["name"], wanted) for entry in specializations]
        return cls(
            batch_size=int(every[0]["batch_size"]),
            seq_lens=tuple(sorted(int(entry["seq_len"]) for entry in every)),
        )


def batch_sizes(specializations: Specializations) -> tuple[int, ...]:
    """Return the image batch sizes of a package, ascending."""
    every = [_required(one["symbols"], one["name"], ("batch_size",)) for one in specializations]
    return tuple(sorted(int(entry["batch_size"]) for entry in every))


def _of_kind(specializations: Specializations, kind: str) -> list[Mapping[str, str]]:
    """Return the symbols of those that are named so, perhaps with a number: `Decode`, or `Decode_0` and more."""
    return [
        entry["symbols"] for entry in specializations if entry["name"].partition("_")[0] == kind
    ]


def _compute_contexts(every: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    given = {symbols.get("comp_ctx_lengths") for symbols in every}
    return tuple(sorted(int(length) for length in given if length))


def _required(found: Mapping[str, str], name: str, wanted: tuple[str, ...]) -> Mapping[str, str]:
    if any(symbol not in found for symbol in wanted):
        raise GenerationError(
            f"Specialization {name!r} gives {dict(found)!r}; expected {', '.join(wanted)}. "
            "Run a package of the task it was built for."
        )
    return found
