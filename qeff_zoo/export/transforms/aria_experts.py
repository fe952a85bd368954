# SPDX-License-Identifier: Apache-2.0
"""Aria's experts: tokens are flattened for the routed experts alone, not for the shared ones beside them.

Flattened and reshaped back, they have a shape that `torch.export` cannot prove to be the original one.
"""

from typing import Any

from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class


def forward(self: Any, hidden_states: Tensor) -> Tensor:
    """Compute `AriaTextMoELayer` on (batch, seq, hidden)."""
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    _, weights, chosen = self.router(tokens)
    routed: Tensor = self.experts(tokens, chosen, weights).view(hidden_states.shape)
    shared: Tensor = self.shared_experts(hidden_states)
    return routed + shared


def apply(model: nn.Module) -> int:
    """Change every `AriaTextMoELayer`; return their number."""
    blocks = of_class(model, "AriaTextMoELayer")
    for block in blocks:
        give(block, forward)
    return len(blocks)
