# SPDX-License-Identifier: Apache-2.0
"""RG-LRU (RecurrentGemma): its convolution and its recurrence retain their states in the cache, not in the modules."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.modules import give
from qeff_zoo.export.transforms.retained_state import RetainedState


def apply(model: Any) -> int:
    """Replace the forward of every recurrent block.

    Args:
        model: Model, changed in place.

    Returns:
        Number of recurrent blocks changed.
    """
    blocks = [layer.temporal_block for layer in model.base_model.layers]
    for index, block in enumerate(blocks):
        if hasattr(block, "rg_lru"):
            block.layer_idx = index
            give(block, _forward)
    return sum(hasattr(block, "rg_lru") for block in blocks)


def _forward(
    self: Any, input_states: Tensor, past_key_values: RetainedState, **_: Any
) -> tuple[Tensor, None]:
    branch = self.linear_x(input_states).transpose(1, 2)  # (batch, channels, seq)
    window = past_key_values.update_conv_state(
        branch, self.layer_idx, conv_kernel_size=self.conv1d_width
    )
    conv = self.conv_1d
    mixed = nn.functional.conv1d(window, conv.weight, conv.bias, groups=conv.groups)
    mixed = mixed[:, :, -branch.shape[2] :].transpose(1, 2)
    output = _recur(self.rg_lru, mixed, past_key_values, self.layer_idx)
    return self.linear_out(output * self.act_fn(self.linear_y(input_states))), None


def _recur(unit: Any, x: Tensor, cache: RetainedState, layer_idx: Any) -> Tensor:
    """Run the recurrence of a unit over x (batch, seq, channels), each channel separately."""
    batch, seq, channels = x.shape
    position = cache.position_ids[:, :, None]
    first, valid = position == 0, position >= 0
    heads = x.view(batch, seq, unit.num_attention_heads, 1, unit.block_width)

    def gate(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.sigmoid((heads @ weight).squeeze(3) + bias).view(batch, seq, channels)

    rate = gate(unit.recurrent_gate_weight, unit.recurrent_gate_bias)
    log_decay = -8.0 * rate * nn.functional.softplus(unit.recurrent_param)
    scale = torch.where(first, 1.0, torch.sqrt(1 - torch.exp(2 * log_decay)))
    log_decay = log_decay * valid  # padding keeps the state
    value = x * gate(unit.input_gate_weight, unit.input_gate_bias) * scale * valid
    state = cache.before(f"recurrent_state.{plain(layer_idx)}")
    if state is None:
        state = x.new_zeros(batch, channels, 1, 1)
    one = x.new_ones(batch, seq, 1, 1)
    output, last = torch.ops.qeff_zoo.linear_recurrence(
        state, log_decay[..., None], one, value[..., None], one
    )
    cache.update_recurrent_state(last, layer_idx)
    result: Tensor = output[..., 0]
    return result
