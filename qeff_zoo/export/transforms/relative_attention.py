# SPDX-License-Identifier: Apache-2.0
"""Attention with a relative bias that each token mixes itself (Inkling), evaluated at the true token positions."""

from typing import Any

import torch
from torch import Tensor

from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.attention import attend
from qeff_zoo.export.transforms.modules import give
from qeff_zoo.export.transforms.retained_state import RetainedState


def apply(model: Any) -> int:
    """Replace the forward of every attention of this kind.

    Args:
        model: Model, changed in place.

    Returns:
        Number of attention modules changed.
    """
    attentions = [module for module in model.modules() if hasattr(module, "rel_logits_proj")]
    for module in attentions:
        give(module, _forward)
    return len(attentions)


def _forward(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    past_key_values: RetainedState,
    **_: Any,
) -> tuple[Tensor, None]:
    cache, by_head = past_key_values, (*hidden_states.shape[:2], -1, self.head_dim)
    query = self.q_norm(self.q_proj(hidden_states).view(by_head)).transpose(1, 2)
    key = self.k_sconv(self.k_proj(hidden_states), past_key_values=cache).view(by_head)
    value = self.v_sconv(self.v_proj(hidden_states), past_key_values=cache).view(by_head)
    count, start = cache.get_mask_sizes(hidden_states.shape[1], plain(self.layer_idx))
    if not isinstance(start, Tensor):
        start = torch.arange(count, device=query.device)[None]  # (batch or 1, keys)
    key, value = cache.update(
        self.k_norm(key).transpose(1, 2), value.transpose(1, 2), self.layer_idx
    )
    positions = cache.position_ids.clamp(min=0)
    bias = _bias(self, self.r_proj(hidden_states), positions, start)
    floor = self.config.log_scaling_n_floor
    if not self.is_sliding and floor is not None:
        longer = torch.log(((positions + 1).float() / floor).clamp(min=1.0))
        scale = (1.0 + self.config.log_scaling_alpha * longer)[:, None, :, None]
        query, bias = query * scale, bias * scale
    mixed, _none = attend(
        self, query, key, value, attention_mask, scaling=self.scaling, position_bias=bias
    )
    return self.o_proj(mixed.flatten(2)), None


def _bias(self: Any, mixture: Tensor, positions: Tensor, keys: Tensor) -> Tensor:
    """Return the bias (batch, heads, seq, keys): the profile of every token, at the distance of each key."""
    profile = mixture.unflatten(2, (self.num_heads, -1)) @ self.rel_logits_proj.proj
    distance = (positions[:, :, None] - keys[:, None, :])[:, None]  # (batch, 1, seq, keys)
    near = (distance >= 0) & (distance < self.rel_extent)
    index = distance.clamp(0, self.rel_extent - 1).expand(-1, self.num_heads, -1, -1)
    return torch.where(near, profile.transpose(1, 2).gather(3, index), 0.0)
