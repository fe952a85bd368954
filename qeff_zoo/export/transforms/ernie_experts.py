# SPDX-License-Identifier: Apache-2.0
"""ERNIE 4.5 VL's experts of text and of images: each token is routed to those of its kind, in mixed calls, too.

transformers selects tokens by a mask and gives each kind of experts its own. Here both get all tokens, and no expert
for a token of the other kind, so that a token still costs only its chosen experts. The kind follows from the token:
image tokens, and those that begin and end an image.
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
        moe_mm_token_type_ids: Whether each token is of an image, (batch, seq); None for text alone.

    Returns:
        (batch, seq, hidden), and no logits of routers.
    """
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if moe_mm_token_type_ids is None:
        moe_mm_token_type_ids = torch.zeros_like(hidden_states[..., 0], dtype=torch.bool)
    of_image = moe_mm_token_type_ids.reshape(-1, 1)
    text, images = (
        _of_kind(self.text_moe, tokens, ~of_image),
        _of_kind(self.vision_moe, tokens, of_image),
    )
    made = (text + images).view(hidden_states.shape)
    return (
        made if self.shared_experts is None else made + self.shared_experts(hidden_states)
    ), None


def _of_kind(block: Any, tokens: Tensor, own: Tensor) -> Tensor:
    """Compute the experts of a kind on its own tokens, (tokens, 1); 0 for others."""
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
