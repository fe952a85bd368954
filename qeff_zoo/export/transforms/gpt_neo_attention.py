# SPDX-License-Identifier: Apache-2.0
"""GPT-Neo's attention at the true positions: its own mask assumes that a call's tokens are the last of the context."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.transforms.modules import give, of_class


def attend(
    self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor
) -> tuple[Tensor, None]:
    """Compute attention without a scale over the whole cache.

    Args:
        self: Module `GPTNeoSelfAttention`.
        query: (batch, heads, seq, head_dim).
        key: (batch, heads, ctx, head_dim).
        value: (batch, heads, ctx, head_dim).
        attention_mask: Additive causal mask, (batch, 1, seq, ctx).

    Returns:
        (batch, heads, seq, head_dim), and no attention weights.
    """
    if self.attention_type == "local":
        # A query attends to as many keys as its position, and to its own.
        visible = (attention_mask == 0).sum(-1, keepdim=True)
        oldest = visible - self.config.window_size
        keys = torch.arange(key.shape[2], device=key.device)
        attention_mask = attention_mask.masked_fill(
            keys < oldest, torch.finfo(attention_mask.dtype).min
        )
    mixed = torch.ops.qeff_zoo.attention(query, key, value, attention_mask, 1.0, 0.0)
    return mixed.transpose(1, 2), None


def apply(model: nn.Module) -> int:
    """Change every `GPTNeoSelfAttention`; return their number."""
    attentions = of_class(model, "GPTNeoSelfAttention")
    for module in attentions:
        give(module, attend, "_attn")
    return len(attentions)
