# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of attention: rows to look at; causal masks; grouped queries, with a soft-cap or with sinks; see `ops`.

In comments: B batch, S new tokens, C cache rows, H heads, G KV heads, D head size.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from qeff_zoo.export.semantic_op import SemanticOp


# --- context read: cache (B, G, C, D) -> its first rows (B, G, L, D), as many as comp_ctx_lengths (L) has elements ---
@torch.library.custom_op("qeff_zoo::context_read", mutates_args=())
def context_read(cache: Tensor, comp_ctx_lengths: Tensor) -> Tensor:
    """Return the first rows of a cache; only the length of `comp_ctx_lengths` counts."""
    rows = cache[:, :, : comp_ctx_lengths.shape[0]]
    return rows.clone(memory_format=torch.contiguous_format)


@context_read.register_fake
def _(cache: Tensor, comp_ctx_lengths: Tensor) -> Tensor:
    return cache.new_empty(*cache.shape[:2], comp_ctx_lengths.shape[0], cache.shape[3])


CONTEXT_READ = SemanticOp(
    name="ContextRead",
    inputs=2,
    body="""
    ContextRead (cache, comp_ctx_lengths) => (rows) {
        begin = Constant <value_ints = [0]> ()
        end = Shape (comp_ctx_lengths)
        axis = Constant <value_ints = [2]> ()
        rows = Slice (cache, begin, end, axis)
    }""",
)


# --- causal mask: positions of the queries (B, S) and a number of cache rows C -> additive mask (B, 1, S, C) ---
@torch.library.custom_op("qeff_zoo::causal_mask", mutates_args=())
def causal_mask(positions: Tensor, ctx_len: int, window: int) -> Tensor:
    """Mask keys after each query and, with a `window` that is not 0, those so many positions before it and earlier."""
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


_MASK = """
    {name}{attributes} (positions, ctx_len) => (mask) {{
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        inner = Constant <value_ints = [1, 3]> ()
        keys = Range (zero, ctx_len, one)
        queries = Unsqueeze (positions, inner)
        before = LessOrEqual (keys, queries)
        {window}
        seen = Constant <value_float = 0.0> ()
        hidden = Constant <value_float = -3.4028234663852886e38> ()
        mask = Where (allowed, seen, hidden)
    }}"""
CAUSAL_MASK = SemanticOp(
    name="CausalMask",
    inputs=2,
    outputs=(None,),
    body=_MASK.format(name="CausalMask", attributes="", window="allowed = Identity (before)"),
)
WINDOW_MASK = SemanticOp(
    name="WindowMask",
    inputs=2,
    outputs=(None,),
    integers=("window",),
    body=_MASK.format(
        name="WindowMask",
        attributes=" <window>",
        window="""rows = Constant <value_int: int = @window> ()
        first = Sub (queries, rows)
        near = Greater (keys, first)
        allowed = And (before, near)""",
    ),
)


# --- mask of keys that lie anywhere: positions of queries (B, S), of keys (B, K) or negative -> additive (B, 1, S, K)
@torch.library.custom_op("qeff_zoo::held_mask", mutates_args=())
def held_mask(positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Mask keys after each query, those `window` positions before it and earlier, and those that are none."""
    queries, held = positions[:, None, :, None], key_positions[:, None, None, :]
    allowed = (held >= 0) & (held <= queries) & (held > queries - window)
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


@held_mask.register_fake
def _(positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    shape = positions.shape[0], 1, positions.shape[1], key_positions.shape[1]
    return positions.new_empty(shape, dtype=torch.float32)


HELD_MASK = SemanticOp(
    name="HeldMask",
    inputs=2,
    outputs=(None,),
    integers=("window",),
    body="""
    HeldMask <window> (positions, key_positions) => (mask) {
        zero = Constant <value_int = 0> ()
        rows = Constant <value_int: int = @window> ()
        inner = Constant <value_ints = [1, 3]> ()
        outer = Constant <value_ints = [1, 2]> ()
        queries = Unsqueeze (positions, inner)
        held = Unsqueeze (key_positions, outer)
        there = GreaterOrEqual (held, zero)
        before = LessOrEqual (held, queries)
        first = Sub (queries, rows)
        near = Greater (held, first)
        causal = And (before, near)
        allowed = And (causal, there)
        seen = Constant <value_float = 0.0> ()
        hidden = Constant <value_float = -3.4028234663852886e38> ()
        mask = Where (allowed, seen, hidden)
    }""",
)


def _mix(
    query: Tensor, key: Tensor, value: Tensor, scale: float, weigh: Callable[[Tensor], Tensor]
) -> Tensor:
    """Mix values by the weights that `weigh` makes of the scores (B, H, S, C), each head with its group's keys."""
    batch, heads, seq, _ = query.shape
    groups, ctx = key.shape[1], key.shape[2]
    grouped = (query * scale).reshape(batch, groups, -1, query.shape[3])  # (B, G, H/G * S, D)
    scores = (grouped @ key.transpose(2, 3)).reshape(batch, heads, seq, ctx)
    mixed = weigh(scores).to(query.dtype).reshape(batch, groups, -1, ctx) @ value
    return mixed.reshape(batch, heads, seq, -1).transpose(1, 2).contiguous()


# --- attention: query (B, H, S, D), key and value (B, G, C, D), mask (B or 1, H or 1, S, C) -> (B, S, H, D) ---
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


# As `attention`, with attention sinks (H): one score more for each head, of a key without a value.
@torch.library.custom_op("qeff_zoo::sink_attention", mutates_args=())
def sink_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor, scale: float
) -> Tensor:
    """Grouped-query attention whose softmax shares its weight with a sink for each head."""

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


_ATTENTION = """
    {name} <scale, num_heads{attributes}> (query, key, value, mask{inputs}) => (y) {{
        factor = Constant <value_float: float = @scale> ()
        factor_like = CastLike (factor, query)
        scaled = Mul (query, factor_like)
        batch_shape = Shape <start = 0, end = 1> (key)
        group_shape = Shape <start = 1, end = 2> (key)
        ctx_shape = Shape <start = 2, end = 3> (key)
        query_head = Shape <start = 3, end = 4> (query)
        value_head = Shape <start = 3, end = 4> (value)
        query_rows = Shape <start = 0, end = 3> (query)
        rest = Constant <value_ints = [-1]> ()
        grouped_shape = Concat <axis = 0> (batch_shape, group_shape, rest, query_head)
        grouped = Reshape (scaled, grouped_shape)
        key_columns = Transpose <perm = [0, 1, 3, 2]> (key)
        grouped_scores = MatMul (grouped, key_columns)
        scores_shape = Concat <axis = 0> (query_rows, ctx_shape)
        scores = Reshape (grouped_scores, scores_shape)
        {cap}
        masked = Add (capped, mask)
        wide = Cast <to = 1> (masked)
        {softmax}
        weights = CastLike (probability, value)
        grouped_weights_shape = Concat <axis = 0> (batch_shape, group_shape, rest, ctx_shape)
        grouped_weights = Reshape (weights, grouped_weights_shape)
        grouped_mixed = MatMul (grouped_weights, value)
        mixed_shape = Concat <axis = 0> (query_rows, value_head)
        mixed = Reshape (grouped_mixed, mixed_shape)
        y = Transpose <perm = [0, 2, 1, 3]> (mixed)
    }}"""
_SOFTMAX = "probability = Softmax <axis = -1> (wide)"
ATTENTION = SemanticOp(
    name="Attention",
    inputs=4,
    attributes=("scale",),
    integers=("num_heads",),
    body=_ATTENTION.format(
        name="Attention",
        attributes="",
        inputs="",
        cap="capped = Identity (scores)",
        softmax=_SOFTMAX,
    ),
)
SOFTCAP_ATTENTION = SemanticOp(
    name="SoftcapAttention",
    inputs=4,
    attributes=("scale", "softcap"),
    integers=("num_heads",),
    body=_ATTENTION.format(
        name="SoftcapAttention",
        attributes=", softcap",
        inputs="",
        softmax=_SOFTMAX,
        cap="""cap = Constant <value_float: float = @softcap> ()
        cap_like = CastLike (cap, scores)
        relative = Div (scores, cap_like)
        bounded = Tanh (relative)
        capped = Mul (bounded, cap_like)""",
    ),
)

SINK_ATTENTION = SemanticOp(
    name="SinkAttention",
    inputs=5,
    attributes=("scale",),
    integers=("num_heads",),
    body=_ATTENTION.format(
        name="SinkAttention",
        attributes="",
        inputs=", sinks",
        cap="capped = Identity (scores)",
        softmax="""sink_shape = Constant <value_ints = [1, -1, 1, 1]> ()
        sink_column = Reshape (sinks, sink_shape)
        wide_sink = Cast <to = 1> (sink_column)
        one = Constant <value_ints = [1]> ()
        column_shape = Concat <axis = 0> (query_rows, one)
        sink = Expand (wide_sink, column_shape)
        every = Concat <axis = -1> (wide, sink)
        shares = Softmax <axis = -1> (every)
        begin = Constant <value_ints = [0]> ()
        axis = Constant <value_ints = [3]> ()
        probability = Slice (shares, begin, ctx_shape, axis)""",
    ),
)
