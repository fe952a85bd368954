# SPDX-License-Identifier: Apache-2.0
"""Compressed convolutional attention (ZAYA): projections store the inputs of their next token in the cache."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give
from qeff_zoo.export.transforms.retained_state import RetainedState


def apply(model: Any) -> int:
    """Replace the forward of every projection of this kind.

    Args:
        model: Model, changed in place.

    Returns:
        Number of projections changed.
    """
    projections = [module for module in model.modules() if hasattr(module, "conv_qk_grouped")]
    for projection in projections:
        give(projection, _forward)
    return len(projections)


def _forward(
    self: Any, hidden_states: Tensor, past_key_values: RetainedState, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value (batch, seq, heads, head_dim)."""
    by_head = (*hidden_states.shape[:2], -1, self.head_dim)
    queries, keys = self.q_proj(hidden_states), self.k_proj(hidden_states)
    repeated = keys.view(by_head).repeat_interleave(self.num_key_value_groups, dim=2)
    rest = (queries.view(by_head) + repeated) * 0.5
    key_rest = rest.unflatten(2, (-1, self.num_key_value_groups)).mean(dim=3)
    window = past_key_values.update_conv_state(
        torch.cat([queries, keys], dim=-1).transpose(1, 2),
        self.layer_idx,
        conv_kernel_size=self.conv_kernel_size,
    )
    mixed = self.conv_qk_grouped(self.conv_qk_depthwise(window)).transpose(1, 2)
    query, key = mixed.split([queries.shape[2], keys.shape[2]], dim=-1)
    # Half of each value is that of the previous token: stored without its bias, so that the first token has none.
    delayed = nn.functional.linear(hidden_states, self.v_proj_delayed.weight).transpose(1, 2)
    before = past_key_values.update_conv_state(
        delayed, self.layer_idx, state_idx=1, conv_kernel_size=1
    )[:, :, :-1].transpose(1, 2)
    bias = self.v_proj_delayed.bias
    before = before if bias is None else before + bias
    value = torch.cat([self.v_proj_current(hidden_states), before], dim=-1)
    return query.view(by_head) + rest, key.view(by_head) + key_rest, value.view(by_head)
