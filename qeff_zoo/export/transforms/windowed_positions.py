# SPDX-License-Identifier: Apache-2.0
"""Attention with relative positions in a window of neighbours (VITS), for sequences of any length."""

from typing import Any

import torch
from torch import Tensor

from qeff_zoo.export.transforms.modules import give, of_class


def apply(model: Any) -> int:
    """Let attention select relative positions by index, in place of views that fit a single length.

    Args:
        model: Hugging Face model, changed in place.

    Returns:
        Number of changed modules.
    """
    attentions = of_class(model, "VitsAttention")
    for module in attentions:
        give(module, _forward)
    return len(attentions)


def _forward(
    self: Any, hidden_states: Tensor, attention_mask: Tensor, output_attentions: bool = False
) -> tuple[Tensor, None]:
    """Return the output of attention.

    Args:
        self: Attention module.
        hidden_states: (batch, seq, hidden).
        attention_mask: Additive, (batch, 1, seq, seq).
        output_attentions: False; the scores are not returned.
    """
    by_head = (*hidden_states.shape[:2], self.num_heads, self.head_dim)

    def split(states: Tensor) -> Tensor:
        return states.view(by_head).transpose(1, 2)  # (batch, heads, seq, head_dim)

    query = split(self.q_proj(hidden_states) * self.scaling)
    key, value = split(self.k_proj(hidden_states)), split(self.v_proj(hidden_states))
    window, positions = self.window_size, torch.arange(hidden_states.shape[1])
    distances = (
        positions[None, :] - positions[:, None] + window
    )  # of a key from a query, (seq, seq)
    near = (distances >= 0) & (distances <= 2 * window)
    heads = (*query.shape[:2], -1, -1)
    by_distance = query @ self.emb_rel_k[0].T  # (batch, heads, seq, 2 * window + 1)
    bias = by_distance.gather(3, distances.clamp(0, 2 * window).expand(heads))
    scores = query @ key.transpose(2, 3) + torch.where(near, bias, 0.0) + attention_mask
    shares = torch.softmax(scores, dim=-1)
    keys = positions[:, None] + torch.arange(2 * window + 1) - window  # (seq, 2 * window + 1)
    real = (keys >= 0) & (keys < hidden_states.shape[1])
    last = hidden_states.shape[1] - 1
    near_shares = shares.gather(3, keys.clamp(min=0).clamp(max=last).expand(heads))
    mixed = shares @ value + torch.where(real, near_shares, 0.0) @ self.emb_rel_v[0]
    return self.out_proj(mixed.transpose(1, 2).flatten(2)), None
