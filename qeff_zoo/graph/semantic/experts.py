# SPDX-License-Identifier: Apache-2.0
"""Experts: every token through the experts that a router chose for it.

In comments: T tokens, K experts of a token, E experts, H hidden size, I intermediate size.
"""

from qeff_zoo.graph.semantic.op import SemanticOp

# --- routed linear: x (T, K, I) or (T, 1, I), index (T, K), weight (E, N, I) -> (T, K, N) ---
# Every matrix by all tokens, those of other experts as zeros: (E, T, …). A target that can multiplies by no others.
ROUTED_LINEAR = SemanticOp(
    name="RoutedLinear",
    inputs=3,
    body="""
    RoutedLinear (x, index, weight) => (y) {
        last = Constant <value_ints = [-1]> ()
        one_axis = Constant <value_ints = [1]> ()
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        count_shape = Shape <start = 0, end = 1> (weight)
        count = Squeeze (count_shape)
        numbers = Range (zero, count, one)
        index_column = Unsqueeze (index, last)
        chosen = Equal (index_column, numbers)
        by_choice = CastLike (chosen, x)
        by_expert = Transpose <perm = [0, 2, 1]> (by_choice)
        choices = Shape <start = 1, end = 2> (index)
        wide_shape = Concat <axis = 0> (one_axis, choices, one_axis)
        wide = Expand (x, wide_shape)
        given_by_token = MatMul (by_expert, wide)
        given = Transpose <perm = [1, 0, 2]> (given_by_token)
        columns = Transpose <perm = [0, 2, 1]> (weight)
        made = MatMul (given, columns)
        made_by_token = Transpose <perm = [1, 0, 2]> (made)
        y = MatMul (by_choice, made_by_token)
    }""",
)


# --- experts: hidden (T, H), index (T, K), weights (T, K), gate_up (E, 2 * I, H), down (E, H, I) -> (T, H) ---
# All experts on all tokens at once: (E, T, …). A target that can computes only those that were chosen.
_BODY = """
    {name} <k, alpha, limit, offset> (hidden, index, weights, {matrices}) => (y) {{
        first = Constant <value_ints = [0]> ()
        second = Constant <value_ints = [1]> ()
        last = Constant <value_ints = [-1]> ()
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        count_shape = Shape <start = 0, end = 1> (gate_up)
        count = Squeeze (count_shape)
        numbers = Range (zero, count, one)
        index_column = Unsqueeze (index, last)
        chosen = Equal (index_column, numbers)
        weight_column = Unsqueeze (weights, last)
        nothing = Constant <value_float = 0.0> ()
        nothing_like = CastLike (nothing, weights)
        parts = Where (chosen, weight_column, nothing_like)
        by_token = ReduceSum <keepdims = 0> (parts, second)
        by_expert = Transpose <perm = [1, 0]> (by_token)
        share = Unsqueeze (by_expert, last)
        every = Unsqueeze (hidden, first)
        {inner}
        slope = Constant <value_float: float = @alpha> ()
        bound = Constant <value_float: float = @limit> ()
        added = Constant <value_float: float = @offset> ()
        slope_like = CastLike (slope, hidden)
        bound_like = CastLike (bound, hidden)
        added_like = CastLike (added, hidden)
        least = Neg (bound_like)
        gate_bounded = Min (gate, bound_like)
        up_below = Min (up, bound_like)
        up_bounded = Max (up_below, least)
        steep = Mul (gate_bounded, slope_like)
        open = Sigmoid (steep)
        passed = Mul (gate_bounded, open)
        up_moved = Add (up_bounded, added_like)
        inside = Mul (passed, up_moved)
        {outer}
        share_like = CastLike (share, made)
        shared = Mul (made, share_like)
        y = ReduceSum <keepdims = 0> (shared, first)
    }}"""


EXPERTS = SemanticOp(
    name="Experts",
    inputs=5,
    attributes=("alpha", "limit", "offset"),
    integers=("k",),
    body=_BODY.format(
        name="Experts",
        matrices="gate_up, down",
        inner="""gate_up_columns = Transpose <perm = [0, 2, 1]> (gate_up)
        both = MatMul (every, gate_up_columns)
        gate, up = Split <axis = -1, num_outputs = 2> (both)""",
        outer="""down_columns = Transpose <perm = [0, 2, 1]> (down)
        made = MatMul (inside, down_columns)""",
    ),
)


# As `experts`, of matrices stored input-major, gate_up (E, H, 2 * I) with interleaved gates and ups and down (E, I, H),
# and with biases (E, 2 * I) and (E, H).
INTERLEAVED_EXPERTS = SemanticOp(
    name="InterleavedExperts",
    inputs=7,
    attributes=("alpha", "limit", "offset"),
    integers=("k",),
    body=_BODY.format(
        name="InterleavedExperts",
        matrices="gate_up, gate_up_bias, down, down_bias",
        inner="""products = MatMul (every, gate_up)
        gate_up_added = Unsqueeze (gate_up_bias, second)
        both = Add (products, gate_up_added)
        pairs_shape = Constant <value_ints = [0, 0, -1, 2]> ()
        pairs = Reshape (both, pairs_shape)
        gate = Gather <axis = 3> (pairs, zero)
        up = Gather <axis = 3> (pairs, one)""",
        outer="""sums = MatMul (inside, down)
        down_added = Unsqueeze (down_bias, second)
        made = Add (sums, down_added)""",
    ),
)
