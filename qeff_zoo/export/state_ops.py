# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of states that do not grow: as a call finds them, and the window that a short convolution looks at.

In comments: B batch, S new tokens, C channels, K columns of a convolution's state.
"""

import torch
from torch import Tensor

from qeff_zoo.export.semantic_op import SemanticOp


# --- state before: past (B, …) and position_ids (B, S) -> (B, …), zeros for rows that start at position 0 ---
@torch.library.custom_op("qeff_zoo::state_before", mutates_args=())
def state_before(past: Tensor, position_ids: Tensor) -> Tensor:
    """Return a state without what an earlier request left in rows that start anew."""
    fresh = (position_ids == 0).any(1).view(-1, *[1] * (past.dim() - 1))
    return torch.where(fresh, torch.zeros((), dtype=past.dtype, device=past.device), past)


@state_before.register_fake
def _(past: Tensor, position_ids: Tensor) -> Tensor:
    return torch.empty_like(past)


STATE_BEFORE = SemanticOp(
    name="StateBefore",
    inputs=2,
    body="""
    StateBefore (past, position_ids) => (before) {
        zero = Constant <value_int = 0> ()
        axis1 = Constant <value_ints = [1]> ()
        all = Constant <value_ints = [-1]> ()
        is_first = Equal (position_ids, zero)
        firsts = Cast <to = 7> (is_first)
        any_first = ReduceMax <keepdims = 0> (firsts, axis1)
        starts = Cast <to = 9> (any_first)
        shape = Shape (past)
        rank = Shape (shape)
        others = Sub (rank, axis1)
        ones = ConstantOfShape <value = int64[1] {1}> (others)
        row_shape = Concat <axis = 0> (all, ones)
        fresh = Reshape (starts, row_shape)
        nothing = Constant <value_float = 0.0> ()
        nothing_like = CastLike (nothing, past)
        before = Where (fresh, nothing_like, past)
    }""",
)


# --- convolution window: before (B, C, K), position_ids (B, S), new (B, C, S) -> (B, C, K + S) and newest (B, C, K) ---
@torch.library.custom_op("qeff_zoo::convolution_window", mutates_args=())
def convolution_window(before: Tensor, position_ids: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns before a call with the new ones, and of both those that the next call finds.

    What came before stands next to a row's first token, over the padding that may be there.
    """
    seen = torch.cat([before, new.to(before.dtype)], dim=2)
    kernel, total = before.shape[2], seen.shape[2]
    columns = torch.arange(total, device=seen.device)
    valid = position_ids >= 0
    first = (valid.cumsum(1) == 0).sum(1, keepdim=True)  # (B, 1), padding before the first token
    moved = torch.where(columns < first + kernel, (columns - first).clamp(min=0), columns)
    seen = seen.gather(2, moved[:, None].expand(seen.shape))
    newest = first + valid.sum(1, keepdim=True) + columns[:kernel]
    return seen, seen.gather(2, newest[:, None].expand(before.shape))


@convolution_window.register_fake
def _(before: Tensor, position_ids: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    batch, channels, kernel = before.shape
    return before.new_empty(batch, channels, kernel + new.shape[2]), torch.empty_like(before)


CONVOLUTION_WINDOW = SemanticOp(
    name="ConvolutionWindow",
    inputs=3,
    outputs=(0, 0),
    integers=("channels", "kernel"),
    body="""
    ConvolutionWindow <channels, kernel> (before, position_ids, new) => (seen, newest) {
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        axis1 = Constant <value_ints = [1]> ()
        kernel_shape = Shape <start = 2, end = 3> (before)
        width = Squeeze (kernel_shape)
        new_like = CastLike (new, before)
        both = Concat <axis = 2> (before, new_like)
        both_shape = Shape (both)
        total_shape = Shape <start = 2, end = 3> (both)
        total = Squeeze (total_shape)
        columns = Range (zero, total, one)
        is_token = GreaterOrEqual (position_ids, zero)
        valid = Cast <to = 7> (is_token)
        so_far = CumSum (valid, axis1)
        is_early = Equal (so_far, zero)
        early = Cast <to = 7> (is_early)
        first = ReduceSum <keepdims = 1> (early, axis1)
        tokens = ReduceSum <keepdims = 1> (valid, axis1)
        fixed = Add (first, width)
        back = Sub (columns, first)
        safe = Max (back, zero)
        is_before = Less (columns, fixed)
        moved = Where (is_before, safe, columns)
        moved_rows = Unsqueeze (moved, axis1)
        moved_index = Expand (moved_rows, both_shape)
        seen = GatherElements <axis = 2> (both, moved_index)
        end = Add (first, tokens)
        kept = Range (zero, width, one)
        newest_columns = Add (end, kept)
        newest_rows = Unsqueeze (newest_columns, axis1)
        state_shape = Shape (before)
        newest_index = Expand (newest_rows, state_shape)
        newest = GatherElements <axis = 2> (seen, newest_index)
    }""",
)
