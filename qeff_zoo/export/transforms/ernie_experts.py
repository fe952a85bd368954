# SPDX-License-Identifier: Apache-2.0
"""ERNIE 4.5 VL's experts of text and of images: each token goes to those of its kind, whatever else is in a call.

transformers picks tokens out by a mask and gives each kind of experts its own. Here both are given all tokens, and no
expert where a token is of the other kind, so that a token still costs the experts that were chosen for it. Its kind
follows from the token: those of a picture, and those that begin and end it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class


def forward(
    self: Any, hidden_states: Tensor, moe_mm_token_type_ids: Tensor | None = None
) -> tuple[Tensor, None]:
    """Compute `Ernie4_5_VLMoeMoeBlock`.

    Args:
        self: The block.
        hidden_states: (batch, seq, hidden).
        moe_mm_token_type_ids: (batch, seq), whether a token is a picture's; None where all are text.

    Returns:
        (batch, seq, hidden), and no logits of routers.
    """
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if moe_mm_token_type_ids is None:
        moe_mm_token_type_ids = torch.zeros_like(hidden_states[..., 0], dtype=torch.bool)
    seen = moe_mm_token_type_ids.reshape(-1, 1)
    text, pictures = _of_kind(self.text_moe, tokens, ~seen), _of_kind(self.vision_moe, tokens, seen)
    made = (text + pictures).view(hidden_states.shape)
    return (
        made if self.shared_experts is None else made + self.shared_experts(hidden_states)
    ), None


def _of_kind(block: Any, tokens: Tensor, own: Tensor) -> Tensor:
    """Compute a kind's experts on its own tokens, (tokens, 1); 0 of others."""
    _, weights, chosen = block.gate(tokens)
    none = block.num_experts + torch.arange(chosen.shape[1])
    made: Tensor = block.experts(
        tokens, torch.where(own, chosen, none), torch.where(own, weights, 0.0)
    )
    return made


def apply(model: nn.Module) -> int:
    """Change every `Ernie4_5_VLMoeMoeBlock`; return their number."""
    blocks = of_class(model, "Ernie4_5_VLMoeMoeBlock")
    for block in blocks:
        give(block, forward)
    return len(blocks)
