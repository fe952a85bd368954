# SPDX-License-Identifier: Apache-2.0
"""DBRX's experts, whose matrices stand one below the other: every expert on all tokens, weighted by its share."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.transforms.modules import give, of_class


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute a block of experts.

    Args:
        self: `DbrxExperts`, whose `mlp` has `w1`, `v1` and `w2`, each (experts * inner, hidden).
        hidden_states: (batch, seq, hidden).
        top_k_index: (tokens, k), the experts of each token.
        top_k_weights: (tokens, k), their shares.

    Returns:
        (batch, seq, hidden).
    """
    tokens = hidden_states.reshape(-1, self.hidden_size)
    total = torch.zeros_like(tokens)
    for expert in range(self.num_experts):
        rows = slice(expert * self.ffn_hidden_size, (expert + 1) * self.ffn_hidden_size)
        gate = self.mlp.activation_fn(nn.functional.linear(tokens, self.mlp.w1[rows]))
        inner = gate * nn.functional.linear(tokens, self.mlp.v1[rows])
        share = torch.where(top_k_index == expert, top_k_weights, 0.0).sum(-1, keepdim=True)
        total = total + inner @ self.mlp.w2[rows] * share
    return total.view_as(hidden_states)


def apply(model: nn.Module) -> int:
    """Change every `DbrxExperts`; return their number."""
    found = of_class(model, "DbrxExperts")
    for module in found:
        give(module, forward)
    return len(found)
