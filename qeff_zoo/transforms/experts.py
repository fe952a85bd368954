# SPDX-License-Identifier: Apache-2.0
"""The experts seam: every expert computed on all tokens and weighted by its share, zero for tokens routed elsewhere.

Static shapes on every target, one weight matrix per expert, and no copy of expert weights per token.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS


def dense_experts(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute a block of experts.

    Args:
        self: The experts module: stacked `gate_up_proj` or `up_proj`, and `down_proj`.
        hidden_states: (tokens, hidden).
        top_k_index: (tokens, k), the experts of each token.
        top_k_weights: (tokens, k), their shares.

    Returns:
        (tokens, hidden).
    """
    if self.has_post_expert_norm:
        raise NotImplementedError(
            f"{type(self).__name__} normalizes after each expert, which is not computed here."
        )
    name = "gate_up_proj" if self.has_gate else "up_proj"

    def project(x: Tensor, weight: str, expert: int) -> Tensor:
        matrix = getattr(self, weight)[expert]
        bias = getattr(self, f"{weight}_bias")[expert] if self.has_bias else None
        if not self.is_transposed:
            return nn.functional.linear(x, matrix, bias)
        product: Tensor = x @ matrix
        return product if bias is None else product + bias

    total = torch.zeros_like(hidden_states)
    for expert in range(self.num_experts):
        share = torch.where(top_k_index == expert, top_k_weights, 0.0).sum(
            -1, keepdim=True
        )  # (tokens, 1)
        inner = project(hidden_states, name, expert)
        inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
        total = total + project(inner, "down_proj", expert) * share.to(inner.dtype)
    return total


ALL_EXPERTS_FUNCTIONS.register("qeff_zoo", dense_experts)


def apply(model: Any) -> int:
    """Choose this implementation; return the number of expert blocks that follow it."""
    model.set_experts_implementation("qeff_zoo")
    return sum(hasattr(module, "_is_expert_parallel") for module in model.modules())
