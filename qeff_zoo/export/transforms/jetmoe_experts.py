# SPDX-License-Identifier: Apache-2.0
"""JetMoe's experts without sorting tokens by expert: each of their products becomes a semantic op.

Attention has experts too. A token's chosen experts each make a set of query heads, and transform its result back.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.experts_ops import mix
from qeff_zoo.export.transforms.modules import give, of_class


def _route(router: Any, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the experts of each token and their routing weights, both (tokens, k), and the scores."""
    scores = router.layer(tokens).float()
    best, chosen = scores.topk(router.top_k, dim=1)
    return chosen, torch.softmax(best, dim=1).type_as(tokens), scores


def _multiply(stack: Any, x: Tensor, chosen: Tensor) -> Tensor:
    """Compute `routed_linear` of a `JetMoeParallelExperts`."""
    made: Tensor = torch.ops.qeff_zoo.routed_linear(x, chosen, stack.weight)
    return made


def feed_forward(self: Any, layer_input: Tensor) -> Tensor:
    """Compute `JetMoeMoE` on (batch, seq, hidden)."""
    tokens = layer_input.reshape(-1, self.input_size)
    chosen, weights, _ = _route(self.router, tokens)
    gate, up = _multiply(self.input_linear, tokens[:, None], chosen).chunk(2, dim=-1)
    made = _multiply(self.output_linear, self.activation(gate) * up, chosen)
    result: Tensor = mix(made, weights).view_as(layer_input) + self.bias
    return result


def queries(self: Any, layer_input: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Compute `JetMoeMoA.map`: (batch, seq, k, heads * head_dim), the scores, and the input of `results`."""
    tokens = layer_input.reshape(-1, self.input_size)
    chosen, weights, scores = _route(self.router, tokens)
    made = _multiply(self.input_linear, tokens[:, None], chosen)
    return made.view(*layer_input.shape[:2], self.top_k, -1), scores, (chosen, weights)


def results(self: Any, layer_input: Tensor, routing: tuple[Tensor, Tensor]) -> Tensor:
    """Compute `JetMoeMoA.reduce` on (batch, seq, k, heads * head_dim)."""
    chosen, weights = routing
    given = layer_input.reshape(-1, self.top_k, self.hidden_size)
    mixed = mix(_multiply(self.output_linear, given, chosen), weights)
    result: Tensor = mixed.view(*layer_input.shape[:2], -1) + self.bias
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
