# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of experts: every token through the experts that a router chose for it; see `ops`.

In comments: T tokens, K experts of a token, E experts, H hidden size, I intermediate size.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from qeff_zoo.export.semantic_op import SemanticOp


def gated(gate: Tensor, up: Tensor, alpha: float, limit: float, offset: float) -> Tensor:
    """Return gate * sigmoid(alpha * gate) * (up + offset), both bounded by the limit first, the gate only above."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + offset)


def mix(
    hidden: Tensor, index: Tensor, weights: Tensor, count: int, compute: Callable[[int], Tensor]
) -> Tensor:
    """Compute every expert on all tokens, and add up each by its share, zero for tokens routed elsewhere.

    Args:
        hidden: (T, H).
        index: (T, K), the experts of each token.
        weights: (T, K), their shares.
        count: Number of experts.
        compute: What an expert makes of `hidden`, (T, H).
    """
    total = torch.zeros_like(hidden)
    for expert in range(count):
        share = torch.where(index == expert, weights, 0.0).sum(-1, keepdim=True)  # (T, 1)
        made = compute(expert)
        total = total + made * share.to(made.dtype)
    return total


# --- experts: hidden (T, H), index (T, K), weights (T, K), gate_up (E, 2 * I, H), down (E, H, I) -> (T, H) ---
@torch.library.custom_op("qeff_zoo::experts", mutates_args=())
def experts(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    """Add up what the experts `index` make of each token, times `weights`; gates come first, then ups."""

    def compute(expert: int) -> Tensor:
        gate, up = torch.nn.functional.linear(hidden, gate_up[expert]).chunk(2, dim=-1)
        return torch.nn.functional.linear(gated(gate, up, alpha, limit, offset), down[expert])

    return mix(hidden, index, weights, len(gate_up), compute)


@experts.register_fake
def _(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    return torch.empty_like(hidden)


# As `experts`, of matrices stored input-major, gate_up (E, H, 2 * I) with gates and ups in turns and down (E, I, H),
# and with biases (E, 2 * I) and (E, H).
@torch.library.custom_op("qeff_zoo::interleaved_experts", mutates_args=())
def interleaved_experts(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    """Add up what the experts `index` make of each token, times `weights`."""

    def compute(expert: int) -> Tensor:
        both = hidden @ gate_up[expert] + gate_up_bias[expert]
        inner = gated(both[..., ::2], both[..., 1::2], alpha, limit, offset)
        return inner @ down[expert] + down_bias[expert]

    return mix(hidden, index, weights, len(gate_up), compute)


@interleaved_experts.register_fake
def _(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    return torch.empty_like(hidden)


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
