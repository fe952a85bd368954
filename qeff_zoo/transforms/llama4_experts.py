# SPDX-License-Identifier: Apache-2.0
"""Llama 4's experts, one by one: transformers multiplies all tokens by all experts in one batched product.

That product has three dimensions and no target quantizes it. A token's input, not its result, is scaled by its score;
the score is 0 for experts that were not chosen, and so is what such an expert returns.
"""

from typing import Any

from torch import Tensor, nn

from qeff_zoo.transforms.modules import give, of_class


def forward(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a block of experts and the shared one.

    Args:
        self: `Llama4TextMoe`.
        hidden_states: (batch, seq, hidden).

    Returns:
        (tokens, hidden), and the router's logits.
    """
    tokens = hidden_states.reshape(-1, self.hidden_dim)
    scores, logits = self.router(tokens)  # (tokens, experts), 0 where not chosen
    total = self.shared_expert(tokens)
    experts = self.experts
    for expert in range(self.num_experts):
        given = tokens * scores[:, expert, None]
        both = nn.functional.linear(given, experts.gate_up_proj[expert].T)
        gate, up = both.chunk(2, dim=-1)
        inner = up * experts.act_fn(gate)
        total = total + nn.functional.linear(inner, experts.down_proj[expert].T)
    return total, logits


def apply(model: nn.Module) -> int:
    """Replace the forward of every `Llama4TextMoe`; return their number."""
    blocks = of_class(model, "Llama4TextMoe")
    for block in blocks:
        give(block, forward)
    return len(blocks)
