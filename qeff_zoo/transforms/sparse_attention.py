# SPDX-License-Identifier: Apache-2.0
"""Sparse attention: an indexer chooses some keys for each query, and the mask hides all others.

transformers chooses by `topk` among the keys there are. Here these are the rows of the cache, of which a call may have
fewer than the indexer chooses: how many are chosen is a size of the graph. Rows that a query may not look at score
lowest; where they are chosen for want of others, the causal mask still hides them.
"""

from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.transforms.attention import attend


def attend_chosen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    indices: Tensor,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention to the chosen keys.

    Args:
        module: The calling attention module.
        query: (batch, heads, seq, head_dim).
        key: (batch, kv_heads, ctx, head_dim).
        value: (batch, kv_heads, ctx, value_head_dim).
        attention_mask: Additive and causal, (batch, 1, seq, ctx).
        indices: (batch, seq, k), the keys of each query.
        **others: As `attend` takes them.
    """
    hidden = torch.ones_like(attention_mask[:, 0], dtype=torch.bool)
    hidden = hidden.expand(query.shape[0], -1, -1).scatter(-1, indices.long(), False)
    lowest = torch.finfo(attention_mask.dtype).min
    chosen = attention_mask.masked_fill(hidden.unsqueeze(1), lowest)
    return attend(module, query, key, value, chosen, **others)


def apply(model: nn.Module) -> int:
    """Change every indexer and the attention that looks where one says; return the number of attentions."""
    attentions = [module for module in model.modules() if hasattr(module, "indexer")]
    chosen = SimpleNamespace(get_interface=lambda *_: attend_chosen)
    for module in attentions:
        _rebind(module, ALL_ATTENTION_FUNCTIONS=chosen)
        if module.indexer is not None:
            _rebind(module.indexer, min=torch.sym_min)
    return len(attentions)


def _rebind(module: Any, **names: Any) -> None:
    """Give a module its own forward: the same code, in which some names mean something else."""
    forward = type(module).forward
    forward = getattr(forward, "__wrapped__", forward)  # without `no_grad`
    known = {**forward.__globals__, **names}
    rebound = FunctionType(
        forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__
    )
    rebound.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(rebound, module)
