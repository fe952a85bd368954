# SPDX-License-Identifier: Apache-2.0
"""DBRX's experts, whose matrices are stacked by rows: each of their products becomes a semantic op."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.experts_ops import mix
from qeff_zoo.export.transforms.modules import give, of_class


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute a block of experts.

    Args:
        self: Module `DbrxExperts`, whose `mlp` has `w1`, `v1` and `w2`, each (experts * inner, hidden).
        hidden_states: (batch, seq, hidden).
        top_k_index: (tokens, k), the experts of each token.
        top_k_weights: (tokens, k), their routing weights.

    Returns:
        (batch, seq, hidden).
    """
    tokens = hidden_states.reshape(-1, 1, self.hidden_size)
    mlp, linear = self.mlp, torch.ops.qeff_zoo.routed_linear
    stack = self.num_experts, self.ffn_hidden_size, self.hidden_size
    gate, up = (linear(tokens, top_k_index, one.view(stack)) for one in (mlp.w1, mlp.v1))
    made = linear(mlp.activation_fn(gate) * up, top_k_index, mlp.w2.view(stack).mT)
    return mix(made, top_k_weights).view_as(hidden_states)


def apply(model: nn.Module) -> int:
    """Change every `DbrxExperts`; return their number."""
    found = of_class(model, "DbrxExperts")
    for module in found:
        give(module, forward)
    return len(found)
