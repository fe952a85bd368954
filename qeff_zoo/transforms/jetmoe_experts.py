# SPDX-License-Identifier: Apache-2.0
"""JetMoe's experts without sorting tokens by expert: every expert on all tokens, weighted by its share.

Attention has experts too. A token's chosen experts each make a set of query heads, and turn its result back.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.transforms.modules import give, of_class


def _route(router: Any, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the experts of each token and their shares, both (tokens, k), and the scores."""
    scores = router.layer(tokens).float()
    best, chosen = scores.topk(router.top_k, dim=1)
    return chosen, torch.softmax(best, dim=1).type_as(tokens), scores


def feed_forward(self: Any, layer_input: Tensor) -> Tensor:
    """Compute `JetMoeMoE` on (batch, seq, hidden)."""
    tokens = layer_input.reshape(-1, self.input_size)
    chosen, shares, _ = _route(self.router, tokens)
    total = torch.zeros_like(tokens)
    for expert in range(self.router.num_experts):
        share = torch.where(chosen == expert, shares, 0.0).sum(-1, keepdim=True)
        gate, up = nn.functional.linear(tokens, self.input_linear.weight[expert]).chunk(2, dim=-1)
        inner = self.activation(gate) * up
        total = total + nn.functional.linear(inner, self.output_linear.weight[expert]) * share
    result: Tensor = total.view_as(layer_input) + self.bias
    return result


def queries(self: Any, layer_input: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Compute `JetMoeMoA.map`: (batch, seq, k, heads * head_dim), the scores, and what `results` needs."""
    tokens = layer_input.reshape(-1, self.input_size)
    chosen, shares, scores = _route(self.router, tokens)
    total = tokens.new_zeros(1, 1, self.hidden_size)
    for expert in range(self.num_experts):
        query = nn.functional.linear(tokens, self.input_linear.weight[expert])
        total = total + torch.where((chosen == expert)[..., None], query[:, None], 0.0)
    return total.view(*layer_input.shape[:2], self.top_k, -1), scores, (chosen, shares)


def results(self: Any, layer_input: Tensor, routing: tuple[Tensor, Tensor]) -> Tensor:
    """Compute `JetMoeMoA.reduce` on (batch, seq, k, heads * head_dim)."""
    chosen, shares = routing
    given = layer_input.reshape(-1, self.top_k, self.hidden_size)
    total = given.new_zeros(1, self.input_size)
    for expert in range(self.num_experts):
        share = torch.where(chosen == expert, shares, 0.0)[..., None]  # (tokens, k, 1)
        mixed = (given * share).sum(1)
        total = total + nn.functional.linear(mixed, self.output_linear.weight[expert])
    result: Tensor = total.view(*layer_input.shape[:2], -1) + self.bias
    return result


def apply(model: nn.Module) -> int:
    """Change every `JetMoeMoE` and `JetMoeMoA`; return their number."""
    blocks, attentions = of_class(model, "JetMoeMoE"), of_class(model, "JetMoeMoA")
    for block in blocks:
        give(block, feed_forward)
    for attention in attentions:
        give(attention, queries, "map")
        give(attention, results, "reduce")
    return len(blocks) + len(attentions)
