# SPDX-License-Identifier: Apache-2.0
"""Recurrences over tokens: state-space models, linear attention, the delta rule.

In comments: B batch, S new tokens, H heads, G groups of them, K key and V value columns of a state.
"""

from qeff_zoo.graph.semantic.op import SemanticOp

# --- linear recurrence: state (B, H, K, V) decays by exp(log_decay), (B, S, H, K or 1), takes key (B, S, G, K) times
# value (B, S, H, V), and is read by query (B, S, G, K): output (B, S, H, V), and the last state. The H / G heads of a
# group share a key and a query. With beta (B, S, H) it takes the delta rule's correction of what the key reads, in
# place of the value. Always in float32. ---
# The heads of a group stand in an axis of their own, R of them, over which its key and its query are broadcast.
_RECURRENCE = """
    {name} <heads, groups> (state, log_decay, key, value, query{beta}) => (y, last) {{
        same = Constant <value_ints = [0]> ()
        same_two = Constant <value_ints = [0, 0]> ()
        shared = Constant <value_ints = [-1]> ()
        count = Shape <start = 2, end = 3> (key)
        columns = Shape <start = 3, end = 4> (value)
        matrix = Shape <start = 2, end = 4> (state)
        decays = Shape <start = 3, end = 4> (log_decay)
        state_shape = Concat <axis = 0> (same, count, shared, matrix)
        decay_shape = Concat <axis = 0> (same_two, count, shared, decays)
        value_shape = Concat <axis = 0> (same_two, count, shared, columns)
        wide_state = Cast <to = 1> (state)
        wide_log = Cast <to = 1> (log_decay)
        wide_key = Cast <to = 1> (key)
        wide_value = Cast <to = 1> (value)
        wide_query = Cast <to = 1> (query)
        wide_decay = Exp (wide_log)
        first = Reshape (wide_state, state_shape)
        decay_groups = Reshape (wide_decay, decay_shape)
        value_groups = Reshape (wide_value, value_shape)
        {beta_groups}
        final, y_groups = Scan <
            num_scan_inputs = {count},
            scan_input_axes = [{axes}],
            scan_output_axes = [1],
            body = token (
                float[b, g, r, k, v] before, float[b, g, r, d] decay_t, float[b, g, k] key_t,
                float[b, g, r, v] value_t, float[b, g, k] query_t{beta_t}
            ) => (float[b, g, r, k, v] after, float[b, g, r, v] y_t) {{
                last_axis = Constant <value_ints = [-1]> ()
                row_axis = Constant <value_ints = [-2]> ()
                column_axes = Constant <value_ints = [2, 4]> ()
                row_axes = Constant <value_ints = [2, 3]> ()
                decay_column = Unsqueeze (decay_t, last_axis)
                key_column = Unsqueeze (key_t, column_axes)
                query_row = Unsqueeze (query_t, row_axes)
                value_row = Unsqueeze (value_t, row_axis)
                decayed = Mul (before, decay_column)
                {written}
                update = Mul (key_column, written)
                after = Add (decayed, update)
                y_row = MatMul (query_row, after)
                y_t = Squeeze (y_row, row_axis)
            }}
        > (first, decay_groups, wide_key, value_groups, wide_query{beta_input})
        y_shape = Shape (value)
        last_shape = Shape (state)
        wide_y = Reshape (y_groups, y_shape)
        wide_last = Reshape (final, last_shape)
        y = CastLike (wide_y, value)
        last = CastLike (wide_last, state)
    }}"""


LINEAR_RECURRENCE = SemanticOp(
    name="LinearRecurrence",
    inputs=5,
    outputs=(3, 0),
    integers=("heads", "groups"),
    body=_RECURRENCE.format(
        name="LinearRecurrence",
        count=4,
        axes="1, 1, 1, 1",
        beta="",
        beta_groups="",
        beta_t="",
        beta_input="",
        written="written = Identity (value_row)",
    ),
)


DELTA_RECURRENCE = SemanticOp(
    name="DeltaRecurrence",
    inputs=6,
    outputs=(3, 0),
    integers=("heads", "groups"),
    body=_RECURRENCE.format(
        name="DeltaRecurrence",
        count=5,
        axes="1, 1, 1, 1, 1",
        beta=", beta",
        beta_groups="""wide_beta = Cast <to = 1> (beta)
        rate_shape = Concat <axis = 0> (same_two, count, shared)
        rates = Reshape (wide_beta, rate_shape)""",
        beta_t=", float[b, g, r] beta_t",
        beta_input=", rates",
        written="""matrix_axes = Constant <value_ints = [3, 4]> ()
                rate = Unsqueeze (beta_t, matrix_axes)
                key_row = Unsqueeze (key_t, row_axes)
                read = MatMul (key_row, decayed)
                missing = Sub (value_row, read)
                written = Mul (missing, rate)""",
    ),
)
