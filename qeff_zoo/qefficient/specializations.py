# SPDX-License-Identifier: Apache-2.0
"""QEfficient's methods for the sizes of a decoder's calls: those that `compile` specializes a program for."""

from collections.abc import Sequence
from typing import Any

from qeff_zoo.contract import TEXT_GENERATION, find
from qeff_zoo.errors import PlanError
from qeff_zoo.qefficient.models import Model
from qeff_zoo.recipe import Shape


def _specialization(
    name: str, comp_ctx_lengths: int | Sequence[int] | None, **sizes: Any
) -> dict[str, Any]:
    """Return the sizes of a call of a decoder with a shape of such sizes."""
    shape = Shape(**sizes)
    last = find(TEXT_GENERATION).specializations(shape)[-1]
    symbols: dict[str, Any] = {symbol: int(size) for symbol, size in last["symbols"].items()}
    if comp_ctx_lengths is not None:
        symbols["comp_ctx_lengths"] = comp_ctx_lengths
    return {**symbols, "_graph_name": name}


class SpecializedDecoder(Model):
    """Model whose program has prefill and decode calls."""

    def build_prefill_specialization(
        self,
        prefill_seq_len: int = 32,
        ctx_len: int = 128,
        comp_ctx_lengths: int | Sequence[int] | None = None,
        batch_size: int = 1,
        kv_cache_batch_size: int | None = None,
        full_batch_size: int | None = None,
    ) -> dict[str, Any]:
        """Return the sizes of a prefill call by their symbols in the graph.

        Args:
            prefill_seq_len: Prompt tokens taken by one call.
            ctx_len: Prompt and generated tokens together.
            comp_ctx_lengths: Compute contexts.
            batch_size: Number of rows without continuous batching.
            kv_cache_batch_size: Equal to the batch slots.
            full_batch_size: Batch slots of continuous batching.
        """
        return _specialization(
            "Prefill",
            comp_ctx_lengths,
            prefill_seq_len=prefill_seq_len,
            ctx_len=ctx_len,
            batch_size=batch_size,
            full_batch_size=self._batch_slots(full_batch_size, kv_cache_batch_size),
            prefill_only=True,
        )

    def build_decode_specialization(
        self,
        prefill_seq_len: int = 32,
        ctx_len: int = 128,
        comp_ctx_lengths: int | Sequence[int] | None = None,
        batch_size: int = 1,
        kv_cache_batch_size: int | None = None,
        full_batch_size: int | None = None,
        num_speculative_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Return the sizes of a decode call, or of one that verifies draft tokens, by their symbols in the graph.

        Args:
            prefill_seq_len: Without effect on decode calls.
            ctx_len: Prompt and generated tokens together.
            comp_ctx_lengths: Compute contexts.
            batch_size: Number of rows without continuous batching.
            kv_cache_batch_size: Equal to the batch slots.
            full_batch_size: Batch slots of continuous batching.
            num_speculative_tokens: Number of draft tokens that the call verifies.
        """
        return _specialization(
            "Decode",
            comp_ctx_lengths,
            prefill_seq_len=prefill_seq_len,
            ctx_len=ctx_len,
            batch_size=batch_size,
            full_batch_size=self._batch_slots(full_batch_size, kv_cache_batch_size),
            num_speculative_tokens=(num_speculative_tokens,) if num_speculative_tokens else (),
            decode_only=True,
        )

    def _batch_slots(
        self, full_batch_size: int | None, kv_cache_batch_size: int | None
    ) -> int | None:
        """Return the batch slots; None without continuous batching."""
        return (full_batch_size or kv_cache_batch_size) if self.continuous_batching else None

    def prefill(
        self, enable: bool = True, enable_chunking: bool = False, retain_full_kv: bool = False
    ) -> None:
        """Refuse QEfficient's change of a PyTorch module, which does not exist here.

        Args:
            enable: Whether the program is for prefill alone.
            enable_chunking: Whether prompts are longer than a call.
            retain_full_kv: Whether sliding windows keep all states.

        Raises:
            PlanError: Always.
        """
        raise PlanError(
            [
                f"`prefill` was called with enable={enable!r}, and there is no PyTorch module; expected the arguments "
                f"of `compile`. Give it prefill_only={enable!r}, enable_chunking={enable_chunking!r} and "
                f"retain_full_kv={retain_full_kv!r}."
            ]
        )
