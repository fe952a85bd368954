# SPDX-License-Identifier: Apache-2.0
"""Attention: causal masks; grouped queries, with a soft-cap or with sinks.

In comments: B batch, S new tokens, C cache rows, H heads, G KV heads, D head size.
"""

from qeff_zoo.graph.semantic.op import SemanticOp

# --- causal mask: positions of the queries (B, S) and a number of cache rows C -> additive mask (B, 1, S, C) ---
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


# --- attention: query (B, H, S, D), key and value (B, G, C, D), mask (B or 1, H or 1, S, C) -> (B, S, H, D) ---
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


# As `attention`, with attention sinks (H): one score more for each head, of a key without a value.
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
