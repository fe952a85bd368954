# SPDX-License-Identifier: Apache-2.0
"""LongCat's experts, some of which return their input: each product of the others becomes a semantic op."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.experts_ops import mix
from qeff_zoo.export.transforms.modules import give, of_class


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute a block of experts.

    Args:
        self: Module `LongcatFlashExperts`.
        hidden_states: (tokens, hidden).
        top_k_index: (tokens, k), the experts of each token; the last ones compute nothing.
        top_k_weights: (tokens, k), their routing weights.

    Returns:
        (tokens, hidden).
    """
    if self.gate_up_proj is None:  # every expert returns its input
        return hidden_states * top_k_weights.sum(-1, keepdim=True)
    idle = torch.where(top_k_index >= self.num_routed_experts, top_k_weights, 0.0)
    linear, stack = torch.ops.qeff_zoo.routed_linear, self.gate_up_proj[: self.num_routed_experts]
    gate, up = linear(hidden_states[:, None], top_k_index, stack).chunk(2, dim=-1)
    made = linear(self.act_fn(gate) * up, top_k_index, self.down_proj)
    return mix(made, top_k_weights) + hidden_states * idle.sum(-1, keepdim=True)


def apply(model: nn.Module) -> int:
    """Change every `LongcatFlashExperts`; return their number."""
    found = of_class(model, "LongcatFlashExperts")
    for module in found:
        give(module, forward)
    return len(found)
