# SPDX-License-Identifier: Apache-2.0
"""Phi-3.5-MoE's RoPE: cosine and sine are scaled by the length of the context, not by the positions of one call.

transformers always takes the short factors, and one of two scales by the largest position of a call.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class


def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `PhimoeRotaryEmbedding`.

    Args:
        self: Module of the rotary embedding.
        x: Tensor of any shape.
        position_ids: (batch, seq).

    Returns:
        Cosine and sine, each (batch, seq, head_dim).
    """
    angles = position_ids[..., None].float() * self.original_inv_freq.to(x.device).float()
    both = torch.cat((angles, angles), dim=-1)
    scale: float | Tensor = self.attention_scaling
    parameters = self.config.rope_parameters
    if parameters["rope_type"] != "default":
        long = self._context.exceeds(parameters["original_max_position_embeddings"], position_ids)
        scale = torch.where(long, parameters["long_mscale"], parameters["short_mscale"])
    return (both.cos() * scale).to(x.dtype), (both.sin() * scale).to(x.dtype)


def apply(model: nn.Module) -> int:
    """Replace the forward of every `PhimoeRotaryEmbedding`; return their number."""
    rotaries = of_class(model, "PhimoeRotaryEmbedding")
    for rotary in rotaries:
        give(rotary, forward)
    return len(rotaries)
