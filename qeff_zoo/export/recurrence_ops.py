# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of recurrences over tokens: state-space models, linear attention, the delta rule; see `ops`.

In comments: B batch, S new tokens, H heads, K key and V value columns of a state.
"""

import torch
from torch import Tensor

from qeff_zoo.export.semantic_op import SemanticOp


# --- linear recurrence: state (B, H, K, V) decays by decay (B, S, H, K or 1), takes key (B, S, H or 1, K) times value
# (B, S, H, V), and is read by query (B, S, H or 1, K): output (B, S, H, V), and the last state. With beta (B, S, H) it
# takes the delta rule's correction of what the key reads, in place of the value. Always in float32. ---
def _recur(
    state: Tensor, decay: Tensor, key: Tensor, value: Tensor, query: Tensor, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    wide = state.float()
    outputs = []
    for t in range(value.shape[1]):
        wide = wide * decay[:, t].float().unsqueeze(-1)
        row = value[:, t].float().unsqueeze(-2)
        if beta is not None:
            read = key[:, t].float().unsqueeze(-2) @ wide
            row = (row - read) * beta[:, t].float().unsqueeze(-1).unsqueeze(-1)
        wide = wide + key[:, t].float().unsqueeze(-1) * row
        outputs.append((query[:, t].float().unsqueeze(-2) @ wide).squeeze(-2))
    return torch.stack(outputs, 1).to(value.dtype), wide.to(state.dtype, copy=True)


@torch.library.custom_op("qeff_zoo::linear_recurrence", mutates_args=())
def linear_recurrence(
    state: Tensor, decay: Tensor, key: Tensor, value: Tensor, query: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what is read after each token, and the last state."""
    return _recur(state, decay, key, value, query, None)


@linear_recurrence.register_fake
def _(
    state: Tensor, decay: Tensor, key: Tensor, value: Tensor, query: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(state)


@torch.library.custom_op("qeff_zoo::delta_recurrence", mutates_args=())
def delta_recurrence(
    state: Tensor, decay: Tensor, key: Tensor, value: Tensor, query: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """As `linear_recurrence`, by the delta rule with rate `beta`."""
    return _recur(state, decay, key, value, query, beta)


@delta_recurrence.register_fake
def _(
    state: Tensor, decay: Tensor, key: Tensor, value: Tensor, query: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(state)


_RECURRENCE = """
    {name} (state, decay, key, value, query{beta}) => (y, last) {{
        wide_state = Cast <to = 1> (state)
        wide_decay = Cast <to = 1> (decay)
        wide_key = Cast <to = 1> (key)
        wide_value = Cast <to = 1> (value)
        wide_query = Cast <to = 1> (query)
        {wide_beta}
        wide_last, wide_y = Scan <
            num_scan_inputs = {count},
            scan_input_axes = [{axes}],
            scan_output_axes = [1],
            body = token (
                float[b, h, k, v] before, float[b, h, d] decay_t, float[b, g, k] key_t,
                float[b, h, v] value_t, float[b, g, k] query_t{beta_t}
            ) => (float[b, h, k, v] after, float[b, h, v] y_t) {{
                last_axis = Constant <value_ints = [-1]> ()
                row_axis = Constant <value_ints = [-2]> ()
                decay_column = Unsqueeze (decay_t, last_axis)
                key_column = Unsqueeze (key_t, last_axis)
                query_row = Unsqueeze (query_t, row_axis)
                value_row = Unsqueeze (value_t, row_axis)
                decayed = Mul (before, decay_column)
                {written}
                update = Mul (key_column, written)
                after = Add (decayed, update)
                y_row = MatMul (query_row, after)
                y_t = Squeeze (y_row, row_axis)
            }}
        > (wide_state, wide_decay, wide_key, wide_value, wide_query{wide_beta_input})
        y = CastLike (wide_y, value)
        last = CastLike (wide_last, state)
    }}"""
LINEAR_RECURRENCE = SemanticOp(
    name="LinearRecurrence",
    inputs=5,
    outputs=(3, 0),
    body=_RECURRENCE.format(
        name="LinearRecurrence",
        count=4,
        axes="1, 1, 1, 1",
        beta="",
        wide_beta="",
        beta_t="",
        wide_beta_input="",
        written="written = Identity (value_row)",
    ),
)
DELTA_RECURRENCE = SemanticOp(
    name="DeltaRecurrence",
    inputs=6,
    outputs=(3, 0),
    body=_RECURRENCE.format(
        name="DeltaRecurrence",
        count=5,
        axes="1, 1, 1, 1, 1",
        beta=", beta",
        wide_beta="wide_beta = Cast <to = 1> (beta)",
        beta_t=", float[b, h] beta_t",
        wide_beta_input=", wide_beta",
        written="""matrix_axes = Constant <value_ints = [2, 3]> ()
                rate = Unsqueeze (beta_t, matrix_axes)
                key_row = Unsqueeze (key_t, row_axis)
                read = MatMul (key_row, decayed)
                missing = Sub (value_row, read)
                written = Mul (missing, rate)""",
    ),
)
