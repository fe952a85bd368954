# SPDX-License-Identifier: Apache-2.0
"""The sizes a package was specialized for, read from the specializations in its manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qeff_zoo.errors import GenerationError

Specializations = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Of a text-generation package.

    Args:
        prefill_seq_len: Prompt tokens that one call takes.
        ctx_len: Cache rows: prompt and generated tokens together.
        batch_size: Rows of one call, without continuous batching.
        full_batch_size: Cache slots of continuous batching; None without.
    """

    prefill_seq_len: int
    ctx_len: int
    batch_size: int
    full_batch_size: int | None

    @property
    def rows(self) -> int:
        """Requests that are served at a time."""
        return self.full_batch_size or self.batch_size

    @classmethod
    def read(cls, specializations: Specializations) -> "DecoderSizes":
        """Read the specializations `Prefill` and `Decode`; without the former, decoding prefills."""
        symbols = _by_name(specializations)
        decode = _required(symbols, "Decode", ("batch_size", "seq_len", "ctx_len"))
        prefill = symbols.get("Prefill", decode)
        slots = decode.get("full_batch_size")
        return cls(
            prefill_seq_len=int(prefill["seq_len"]),
            ctx_len=int(decode["ctx_len"]),
            batch_size=int(decode["batch_size"]),
            full_batch_size=int(slots) if slots else None,
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

    @classmethod
    def read(cls, specializations: Specializations) -> "EncoderSizes":
        """Read one specialization per sequence length."""
        symbols = _by_name(specializations)
        every = [_required(symbols, name, ("batch_size", "seq_len")) for name in symbols]
        return cls(
            batch_size=int(every[0]["batch_size"]),
            seq_lens=tuple(sorted(int(entry["seq_len"]) for entry in every)),
        )


def _by_name(specializations: Specializations) -> dict[str, Mapping[str, str]]:
    return {entry["name"]: entry["symbols"] for entry in specializations}


def _required(
    symbols: Mapping[str, Mapping[str, str]], name: str, wanted: tuple[str, ...]
) -> Mapping[str, str]:
    found = symbols.get(name, {})
    if any(symbol not in found for symbol in wanted):
        raise GenerationError(
            f"Specialization {name!r} gives {dict(found)!r}; expected {', '.join(wanted)}. "
            "Run a package of the task it was built for."
        )
    return found
