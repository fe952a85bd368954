# SPDX-License-Identifier: Apache-2.0
"""Reading and writing states: of a cache, of slots, and as a call finds those that do not grow.

In comments: B batch, S new tokens, C cache rows, G KV heads, D head size; of a convolution C channels, K columns.
"""

from qeff_zoo.graph.semantic.op import SemanticOp

# --- cache write: new (B, G, S, D) into past (B, G, C, D) at position_ids (B, S); -1 writes nothing ---
# A padding column repeats its row's newest token, so that every index is valid and equal indices carry equal values;
# a row of padding alone writes back what it read.
_WRITE = """
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        axis0 = Constant <value_ints = [0]> ()
        axis1 = Constant <value_ints = [1]> ()
        axis2 = Constant <value_ints = [2]> ()
        axis3 = Constant <value_ints = [3]> ()
        inner = Constant <value_ints = [1, 2]> ()
        outer = Constant <value_ints = [2, 3]> ()
        columns_shape = Shape <start = 1, end = 2> (position_ids)
        columns_count = Squeeze (columns_shape, axis0)
        columns = Range (zero, columns_count, one)
        newest = ReduceMax <keepdims = 1> (position_ids, axis1)
        newest_column = ArgMax <axis = 1, keepdims = 1> (position_ids)
        padding = Less (position_ids, zero)
        safe_newest = Max (newest, zero)
        rows = Where (padding, safe_newest, position_ids)
        source = Where (padding, newest_column, columns)
        source_index = Unsqueeze (source, axis2)
        heads_shape = Shape <start = 1, end = 2> (past)
        heads_count = Squeeze (heads_shape, axis0)
        heads = Range (zero, heads_count, one)
        by_row = Unsqueeze (rows, axis2)
        index_shape = Concat <axis = 0> (rows_shape, heads_shape)
        by_slot = Unsqueeze (slots, inner)
        slot_index = Expand (by_slot, index_shape)
        head_index = Expand (heads, index_shape)
        row_index = Expand (by_row, index_shape)
        slot_last = Unsqueeze (slot_index, axis3)
        head_last = Unsqueeze (head_index, axis3)
        row_last = Unsqueeze (row_index, axis3)
        indices = Concat <axis = 3> (slot_last, head_last, row_last)
        tokens = Transpose <perm = [0, 2, 1, 3]> (new)
        picked = GatherND <batch_dims = 1> (tokens, source_index)
        picked_like = CastLike (picked, past)
        old = GatherND (past, indices)
        empty = Less (newest, zero)
        idle = Unsqueeze (empty, outer)
        updates = Where (idle, old, picked_like)
        present = ScatterND (past, indices, updates)
    }"""


CACHE_WRITE = SemanticOp(
    name="CacheWrite",
    inputs=3,
    body="""
    CacheWrite (past, position_ids, new) => (present) {
        rows_shape = Shape (position_ids)
        batch_shape = Shape <start = 0, end = 1> (position_ids)
        batch_axis = Constant <value_ints = [0]> ()
        batch_count = Squeeze (batch_shape, batch_axis)
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        slots = Range (first, batch_count, step)"""
    + _WRITE,
)


SLOT_WRITE = SemanticOp(
    name="SlotWrite",
    inputs=4,
    body="""
    SlotWrite (past, batch_index, position_ids, new) => (present) {
        rows_shape = Shape (position_ids)
        slot_axis = Constant <value_ints = [1]> ()
        slots = Squeeze (batch_index, slot_axis)"""
    + _WRITE,
)


# --- slot read: the cache rows of a batch, (slots, G, C, D) and batch_index (B, 1) -> (B, G, C, D) ---
SLOT_READ = SemanticOp(
    name="SlotRead",
    inputs=2,
    body="""
    SlotRead (cache, batch_index) => (rows) {
        slot_axis = Constant <value_ints = [1]> ()
        slots = Squeeze (batch_index, slot_axis)
        rows = Gather <axis = 0> (cache, slots)
    }""",
)


# --- slot replace: rows (B, …) become the slots that batch_index (B, 1) names, of past (slots, …) ---
SLOT_REPLACE = SemanticOp(
    name="SlotReplace",
    inputs=3,
    body="""
    SlotReplace (past, batch_index, rows) => (present) {
        rows_like = CastLike (rows, past)
        present = ScatterND (past, batch_index, rows_like)
    }""",
)


# --- context read: cache (B, G, C, D) -> its first rows (B, G, L, D), as many as comp_ctx_lengths (L) has elements ---
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


# --- state before: past (B, …) and position_ids (B, S) -> (B, …), zeros for rows that start at position 0 ---
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
