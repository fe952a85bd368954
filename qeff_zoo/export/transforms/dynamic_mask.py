# SPDX-License-Identifier: Apache-2.0
"""Doge's dynamic mask: values score the keys, and each query attends to its `keep_window_size` best visible ones.

As many spare keys as are chosen guarantee a sufficient number; they score lowest and are removed again. Nothing is
chosen if texts cannot be longer than that.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.export.transforms.modules import give, of_class


def mask(
    self: Any,
    hidden_states: Tensor,
    dt_states: Tensor,
    keep_window_size: int,
    attention_mask: Tensor,
) -> Tensor:
    """Return the additive mask, (batch, kv_heads, seq, ctx).

    Args:
        self: `DogeAttention`.
        hidden_states: (batch, seq, hidden).
        dt_states: Scores of the keys, (batch, kv_heads, ctx).
        keep_window_size: Number of keys that each query attends to.
        attention_mask: Additive causal mask, (batch, 1, seq, ctx).
    """
    lowest = torch.finfo(hidden_states.dtype).min
    scores = dt_states[:, :, None].expand(-1, -1, hidden_states.shape[1], -1)
    scores = scores.masked_fill(attention_mask != 0, lowest)
    if keep_window_size >= self.config.max_position_embeddings:
        return scores
    padded = nn.functional.pad(scores, (0, keep_window_size), value=lowest)
    best = padded.topk(keep_window_size, dim=-1).indices
    hidden = torch.ones_like(padded, dtype=torch.bool).scatter(-1, best, False)
    return scores.masked_fill(hidden[..., : scores.shape[-1]], lowest)


def apply(model: nn.Module) -> int:
    """Change every `DogeAttention`; return their number."""
    if of_class(model, "DogeCDMoE"):
        raise UnsupportedModelError(
            "DogeCDMoE chooses the experts of a token by other tokens of the same call, so that its result would be "
            "another one with a cache. Expected a Doge without experts; no graph of this checkpoint would be right."
        )
    attentions = of_class(model, "DogeAttention")
    for module in attentions:
        give(module, mask, "prepare_dynamic_mask")
    return len(attentions)
