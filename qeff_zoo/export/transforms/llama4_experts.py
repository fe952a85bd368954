# SPDX-License-Identifier: Apache-2.0
"""Llama 4's experts, whose input, not result, is scaled by the token's score: each product becomes a semantic op.

transformers multiplies all tokens by all experts in one batched product.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.transforms.modules import give, of_class


def forward(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a block of experts and its shared expert.

    Args:
        self: Module `Llama4TextMoe`.
        hidden_states: (batch, seq, hidden).

    Returns:
        (tokens, hidden), and the router's logits.
    """
    tokens = hidden_states.reshape(-1, self.hidden_dim)
    scores, logits = self.router(tokens)  # (tokens, experts), 0 where not chosen
    best, chosen = scores.topk(self.top_k, dim=1)
    experts, linear = self.experts, torch.ops.qeff_zoo.routed_linear
    given = tokens[:, None] * best[..., None]  # (tokens, k, hidden)
    gate, up = linear(given, chosen, experts.gate_up_proj.mT).chunk(2, dim=-1)
    made = linear(up * experts.act_fn(gate), chosen, experts.down_proj.mT)
    return self.shared_expert(tokens) + made.sum(1), logits


def apply(model: nn.Module) -> int:
    """Replace the forward of every `Llama4TextMoe`; return their number."""
    blocks = of_class(model, "Llama4TextMoe")
    for block in blocks:
        give(block, forward)
    return len(blocks)
