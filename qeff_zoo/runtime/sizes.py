# SPDX-License-Identifier: Apache-2.0
"""Sizes that a package was specialized for, from the specializations in its manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Specializations


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes of a text-generation package.

    Args:
        prefill_seq_len: Number of prompt tokens in one call.
        ctx_len: Context length, for prompt and generated tokens together.
        batch_size: Rows of one call, without continuous batching.
        full_batch_size: Batch slots of continuous batching; None without.
        comp_ctx_lengths_prefill: Compute contexts of prefill calls, ascending; empty if calls determine what they
            read.
        comp_ctx_lengths_decode: Compute contexts of decode calls.
        num_speculative_tokens: Numbers of draft tokens that a decode call can check, ascending.
        decodes: Whether the package has specializations for decode calls, and not for prefill alone.
        encoder_ctx_len: Maximum number of tokens in the encoder's text; 0 without an encoder.
        max_num_images: Maximum number of images in a prompt if these are a state; else 0.
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
        """Number of requests that are served at a time."""
        return self.full_batch_size or self.batch_size

    def covering(self, lengths: Sequence[int], tokens: int) -> int:
        """Return the smallest of ascending lengths that holds that many tokens, or the whole context."""
        return next((length for length in lengths if length >= tokens), self.ctx_len)

    @classmethod
    def read(cls, specializations: Specializations) -> "DecoderSizes":
        """Return the sizes of `Prefill` and `Decode`; without the former, decode calls prefill token by token."""
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
    """Sizes of an encoder package.

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
        """Return the sizes of specializations, one per sequence length."""
        wanted = ("batch_size", "seq_len")
        every = [_required(entry["symbols"], entry["name"], wanted) for entry in specializations]
        return cls(
            batch_size=int(every[0]["batch_size"]),
            seq_lens=tuple(sorted(int(entry["seq_len"]) for entry in every)),
        )


def batch_sizes(specializations: Specializations) -> tuple[int, ...]:
    """Return the image batch sizes of a package, ascending."""
    every = [
        _required(specialization["symbols"], specialization["name"], ("batch_size",))
        for specialization in specializations
    ]
    return tuple(sorted(int(entry["batch_size"]) for entry in every))


def _of_kind(specializations: Specializations, kind: str) -> list[Mapping[str, str]]:
    """Return the symbols of specializations of a kind, with or without a number: `Decode`, `Decode_0` and so on."""
    return [
        entry["symbols"] for entry in specializations if entry["name"].partition("_")[0] == kind
    ]


def _compute_contexts(every: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    given = {symbols.get("comp_ctx_lengths") for symbols in every}
    return tuple(sorted(int(length) for length in given if length))


def _required(sizes: Mapping[str, str], name: str, wanted: tuple[str, ...]) -> Mapping[str, str]:
    if any(symbol not in sizes for symbol in wanted):
        raise GenerationError(
            f"Specialization {name!r} gives {dict(sizes)!r}; expected {', '.join(wanted)}. "
            "Run a package of the task it was built for."
        )
    return sizes
