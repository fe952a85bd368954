# SPDX-License-Identifier: Apache-2.0
"""Block-sparse attention: an indexer chooses blocks of keys for each query, and all others are masked.

transformers chooses fewer if there are fewer blocks. Here the keys are the rows of the cache, whose number is symbolic.
So the indexer gets as many spare blocks as it chooses: they score lowest, as do blocks that a query may not attend to.
The causal mask hides those that were chosen for lack of better ones.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.attention import attend
from qeff_zoo.export.transforms.sparse_attention import follow_indexers, hide


def choose(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    past_key_values: Any,
    position_ids: Tensor,
) -> Tensor:
    """Return which rows of the cache are in chosen blocks, (batch, indexer's heads, seq, ctx).

    Args:
        self: The indexer.
        hidden_states: (batch, seq, hidden).
        position_embeddings: Cosines and sines.
        past_key_values: KV cache, with the indexer's keys.
        position_ids: (batch, seq).
    """
    rotate = type(self).forward.__globals__["apply_rotary_pos_emb"]
    shape = (*hidden_states.shape[:2], -1, self.head_dim)
    query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
    key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
    query, key = rotate(query, key, *(half[..., : self.head_dim] for half in position_embeddings))
    keys = past_key_values.update_indexer(key.squeeze(1), self.layer_idx)  # (batch, ctx, head_dim)

    ctx, size = keys.shape[1], self.block_size
    lowest = torch.finfo(torch.float32).min
    scores = query.float() @ keys.float().mT.unsqueeze(1)  # (batch, heads, seq, ctx)
    ahead = torch.arange(ctx, device=keys.device) > position_ids[:, None, :, None]
    spare = size - 1 + self.topk_blocks * size
    filled = nn.functional.pad(scores.masked_fill(ahead, lowest), (0, spare), value=lowest)
    best = nn.functional.max_pool2d(filled, (1, size))  # (batch, heads, seq, blocks)
    number = torch.arange(best.shape[-1], device=keys.device)
    own = position_ids[:, None, :, None] // size
    near = (number <= own) & (number > own - self.local_blocks)
    best = best.masked_fill(near, torch.finfo(torch.float32).max)

    chosen = best.topk(self.topk_blocks, dim=-1).indices
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, chosen, True)
    rows: Tensor = kept[..., torch.arange(ctx, device=keys.device) // size]
    return rows


def attend_chosen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    block_indices: Tensor | None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention to the chosen blocks, in place of any attention function.

    Args:
        module: The calling attention module.
        query: (batch, heads, seq, head_dim).
        key: (batch, kv_heads, ctx, head_dim).
        value: (batch, kv_heads, ctx, value_head_dim).
        attention_mask: Additive causal mask, (batch, 1, seq, ctx).
        block_indices: Result of `choose`, one head for a group of query heads; None for all keys.
        **others: Arguments of `attend`.
    """
    if block_indices is not None:
        group = query.shape[1] // block_indices.shape[1]
        attention_mask = hide(attention_mask, ~block_indices.repeat_interleave(group, dim=1))
    return attend(module, query, key, value, attention_mask, **others)


def apply(model: nn.Module) -> int:
    """Change every attention that may have an indexer, and the indexers; return the number of indexers."""
    attentions = follow_indexers(model, attend_chosen, choose)
    return sum(module.indexer is not None for module in attentions)
