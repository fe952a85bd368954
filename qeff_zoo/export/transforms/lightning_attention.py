# SPDX-License-Identifier: Apache-2.0
"""Lightning attention (MiniMax): a linear recurrence with a decay rate for each head, as a semantic op."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.modules import give
from qeff_zoo.export.transforms.retained_state import RetainedState


def apply(model: Any) -> int:
    """Replace the forward of every lightning attention, and let the model take a cache of another class.

    Args:
        model: Model, changed in place.

    Returns:
        Number of attention modules changed.
    """
    mixers = [m for m in model.modules() if type(m).__name__.endswith("LightningAttention")]
    for mixer in mixers:
        give(mixer, _forward)
    model.base_model.register_forward_pre_hook(_without_own_cache, with_kwargs=True)
    return len(mixers)


def _without_own_cache(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Skip the model's check of its cache's class; its layers take any cache."""
    return args, {**kwargs, "use_cache": False}


def _forward(
    self: Any, hidden_states: Tensor, past_key_values: RetainedState, **_: Any
) -> tuple[Tensor, None]:
    batch, seq = hidden_states.shape[:2]
    mixed = self.act_fn(self.qkv_proj(hidden_states))
    mixed = mixed.view(batch, seq, self.num_attention_heads, 3 * self.head_dim)
    query, key, value = torch.split(mixed, self.head_dim, dim=3)
    valid = (past_key_values.position_ids >= 0)[:, :, None, None]  # padding keeps the state
    log_decay = -self.slope_rate.view(1, 1, -1, 1) * valid
    state = past_key_values.before(f"recurrent_state.{plain(self.layer_idx)}")
    if state is None:
        state = value.new_zeros(batch, self.num_attention_heads, self.head_dim, self.head_dim)
    output, last = torch.ops.qeff_zoo.linear_recurrence(state, log_decay, key * valid, value, query)
    past_key_values.update_recurrent_state(last, self.layer_idx)
    output = self.norm(output.reshape(batch, seq, -1))
    return self.out_proj(torch.sigmoid(self.output_gate(hidden_states)) * output), None
