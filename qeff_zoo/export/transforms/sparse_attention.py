# SPDX-License-Identifier: Apache-2.0
"""Sparse attention: an indexer chooses `index_topk` keys for each query, and all others are masked.

transformers chooses fewer if there are fewer keys. Here the keys are the rows of the cache, whose number is symbolic.
So the indexer gets as many spare rows as it chooses: they score lowest, as do rows that a query may not attend to, and
are dropped again. The causal mask hides rows that were chosen for lack of better ones.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.attention import attend
from qeff_zoo.export.transforms.modules import give, rebound


def choose(
    self: Any,
    hidden_states: Tensor,
    q_resid: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor,
    position_ids: Tensor,
    past_key_values: Any,
) -> Tensor:
    """Return the `index_topk` best rows for each query, (batch, seq, index_topk), spare ones at the end among them.

    Args:
        self: Module of the indexer.
        hidden_states: (batch, seq, hidden).
        q_resid: (batch, seq, q_lora_rank).
        position_embeddings: Cosines and sines.
        attention_mask: Additive causal mask, (batch, seq, ctx).
        position_ids: (batch, seq).
        past_key_values: KV cache, with the indexer's keys.
    """

    def keep(keys: Tensor, layer_idx: int) -> Tensor:
        kept: Tensor = past_key_values.update_indexer(keys, layer_idx)
        return nn.functional.pad(kept, (0, 0, 0, self.index_topk))

    lowest = torch.finfo(attention_mask.dtype).min
    mask = nn.functional.pad(attention_mask, (0, self.index_topk), value=lowest)
    cache = SimpleNamespace(update_indexer=keep)
    chosen: Tensor = type(self).forward(
        self, hidden_states, q_resid, position_embeddings, mask, position_ids, cache
    )
    return chosen


def attend_chosen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    indices: Tensor | None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention to the chosen keys, in place of any attention function.

    Args:
        module: The calling attention module.
        query: (batch, heads, seq, head_dim).
        key: (batch, kv_heads, ctx, head_dim).
        value: (batch, kv_heads, ctx, value_head_dim).
        attention_mask: Additive causal mask, (batch, 1, seq, ctx).
        indices: Result of `choose`; None in a layer that attends to all keys.
        **others: Arguments of `attend`.
    """
    if indices is None:
        return attend(module, query, key, value, attention_mask, **others)
    batch, seq, spare = indices.shape
    ctx = attention_mask.shape[-1]
    hidden = torch.ones(batch, seq, ctx + spare, dtype=torch.bool, device=query.device)
    hidden = hidden.scatter(-1, indices.long(), False)[..., :ctx].unsqueeze(1)
    return attend(module, query, key, value, hide(attention_mask, hidden), **others)


def hide(attention_mask: Tensor, hidden: Tensor) -> Tensor:
    """Return an additive mask that also masks where another of its shape is True."""
    return attention_mask.masked_fill(hidden, torch.finfo(attention_mask.dtype).min)


def follow_indexers(
    model: nn.Module, attention: Callable[..., Any], indexer: Callable[..., Any]
) -> list[Any]:
    """Replace the computations of attentions that follow an indexer, and of the indexers.

    Args:
        model: Model, changed in place.
        attention: Replacement of any attention function of such a module.
        indexer: Replacement of an indexer's forward.

    Returns:
        The attentions; one whose `indexer` is None attends to the choice of the previous layer, or to all keys.
    """
    attentions = [module for module in model.modules() if hasattr(module, "indexer")]
    functions = SimpleNamespace(get_interface=lambda *_: attention)
    for module in attentions:
        give(module, rebound(type(module).forward, ALL_ATTENTION_FUNCTIONS=functions))
        if module.indexer is not None:
            give(module.indexer, indexer)
    return attentions


def apply(model: nn.Module) -> int:
    """Change every indexer, and every attention that follows one; return the number of attentions."""
    return len(follow_indexers(model, attend_chosen, choose))
