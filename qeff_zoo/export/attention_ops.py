# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of attention in torch; `semantic.attention` defines them."""

from collections.abc import Callable

import torch
from torch import Tensor


@torch.library.custom_op("qeff_zoo::context_read", mutates_args=())
def context_read(cache: Tensor, comp_ctx_lengths: Tensor) -> Tensor:
    """Return the first rows of a cache, as many as `comp_ctx_lengths` has elements."""
    rows = cache[:, :, : comp_ctx_lengths.shape[0]]
    return rows.clone(memory_format=torch.contiguous_format)


@context_read.register_fake
def _(cache: Tensor, comp_ctx_lengths: Tensor) -> Tensor:
    return cache.new_empty(*cache.shape[:2], comp_ctx_lengths.shape[0], cache.shape[3])


@torch.library.custom_op("qeff_zoo::causal_mask", mutates_args=())
def causal_mask(positions: Tensor, ctx_len: int, window: int) -> Tensor:
    """Return the mask of keys after each query and, with a `window` other than 0, of keys that many before it."""
    queries = positions[:, None, :, None]
    keys = torch.arange(ctx_len, device=positions.device)
    allowed = keys <= queries
    if window:
        allowed = allowed & (keys > queries - window)
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


@causal_mask.register_fake
def _(positions: Tensor, ctx_len: int, window: int) -> Tensor:
    shape = positions.shape[0], 1, positions.shape[1], ctx_len
    return positions.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("qeff_zoo::held_mask", mutates_args=())
def held_mask(positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Return the mask of keys after each query, of those `window` or more positions before it, and of unused rows."""
    queries, held = positions[:, None, :, None], key_positions[:, None, None, :]
    allowed = (held >= 0) & (held <= queries) & (held > queries - window)
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


@held_mask.register_fake
def _(positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    shape = positions.shape[0], 1, positions.shape[1], key_positions.shape[1]
    return positions.new_empty(shape, dtype=torch.float32)


def _mix(
    query: Tensor, key: Tensor, value: Tensor, scale: float, weigh: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return values weighted by `weigh` of the scores (B, H, S, C), each head with the keys of its group."""
    batch, heads, seq, _ = query.shape
    groups, ctx = key.shape[1], key.shape[2]
    grouped = (query * scale).reshape(batch, groups, -1, query.shape[3])  # (B, G, H/G * S, D)
    scores = (grouped @ key.transpose(2, 3)).reshape(batch, heads, seq, ctx)
    mixed = weigh(scores).to(query.dtype).reshape(batch, groups, -1, ctx) @ value
    return mixed.reshape(batch, heads, seq, -1).transpose(1, 2).contiguous()


@torch.library.custom_op("qeff_zoo::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """Grouped-query attention with an additive mask; `softcap` 0 means none. Softmax in float32."""

    def weigh(scores: Tensor) -> Tensor:
        capped = torch.tanh(scores / softcap) * softcap if softcap else scores
        return torch.softmax((capped + mask).float(), dim=-1)

    return _mix(query, key, value, scale, weigh)


@attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


@torch.library.custom_op("qeff_zoo::sink_attention", mutates_args=())
def sink_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor, scale: float
) -> Tensor:
    """Grouped-query attention whose softmax includes a sink for each head."""

    def weigh(scores: Tensor) -> Tensor:
        sink = sinks.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        every = torch.cat([scores + mask, sink.to(scores.dtype)], dim=-1)
        return torch.softmax(every.float(), dim=-1)[..., :-1]

    return _mix(query, key, value, scale, weigh)


@sink_attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor, scale: float
) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
