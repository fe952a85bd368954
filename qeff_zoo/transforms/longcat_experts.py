# SPDX-License-Identifier: Apache-2.0
"""LongCat's experts: every one on all tokens, weighted by its share; some of them give back what they are given."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.transforms.modules import give, of_class


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute a block of experts.

    Args:
        self: `LongcatFlashExperts`.
        hidden_states: (tokens, hidden).
        top_k_index: (tokens, k), the experts of each token; the last ones compute nothing.
        top_k_weights: (tokens, k), their shares.

    Returns:
        (tokens, hidden).
    """
    idle = torch.where(top_k_index >= self.num_routed_experts, top_k_weights, 0.0)
    total = hidden_states * idle.sum(-1, keepdim=True)
    for expert in range(self.num_routed_experts):
        share = torch.where(top_k_index == expert, top_k_weights, 0.0).sum(-1, keepdim=True)
        both = nn.functional.linear(hidden_states, self.gate_up_proj[expert])
        gate, up = both.chunk(2, dim=-1)
        inner = self.act_fn(gate) * up
        total = total + nn.functional.linear(inner, self.down_proj[expert]) * share
    return total


def apply(model: nn.Module) -> int:
    """Change every `LongcatFlashExperts`; return their number."""
    found = of_class(model, "LongcatFlashExperts")
    for module in found:
        give(module, forward)
    return len(found)
