# SPDX-License-Identifier: Apache-2.0
"""The attention seam of vision encoders beside a language model: no cache, perhaps no mask.

A vision encoder may pack images, or windows of one, into one sequence, with the end of each. transformers passes those
ends to implementations whose name contains "flash"; others get pieces, whose number depends on the sizes. Here a mask
separates the segments, so that one graph takes any sizes.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from . import attention

IMPLEMENTATION = "qeff_zoo_flash"
#: Attention of the language model: rows may have images at different positions, with bidirectional attention.
BY_ROW = "qeff_zoo_by_row"
_MORE = ("cu_seq_lens_k", "max_length_q", "max_length_k", "is_causal")


def implement(model: Any) -> None:
    """Set the attention of `transforms.attention` in a language model, and that of this module in encoders beside it.

    The config is changed, not the model: some older classes refuse the change although the mask seam needs only the
    name.

    Args:
        model: Model, changed in place.
    """
    config = model.config
    text = config.get_text_config()
    encoders = {name: getattr(config, name, None) for name in config.sub_configs}
    config._attn_implementation = {
        "": attention.IMPLEMENTATION,
        **{
            name: BY_ROW if encoder is text else IMPLEMENTATION
            for name, encoder in encoders.items()
        },
    }


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    cu_seq_lens_q: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Compute attention without a cache, through transformers' attention interface.

    Args:
        module: The calling attention module.
        query: (batch or 1, heads, seq, head_dim).
        key: (batch, kv_heads, ctx, head_dim).
        value: Values, shaped as the key.
        attention_mask: Additive mask; None for full attention.
        cu_seq_lens_q: Boundaries of the segments of a packed sequence, (segments + 1,); None for none.
        **extra: Arguments of `attention.attend`.
    """
    for name in _MORE:
        extra.pop(name, None)
    if query.shape[0] != key.shape[0]:  # learned queries, which are the same for all
        query = query.expand(key.shape[0], -1, -1, -1)
    if cu_seq_lens_q is not None:
        attention_mask = apart(query.shape[2], cu_seq_lens_q)
    elif attention_mask is None:
        attention_mask = torch.zeros(1, 1, query.shape[2], key.shape[2])
    return attention.attend(module, query, key, value, attention_mask, **extra)


def apart(length: int, ends: Tensor) -> Tensor:
    """Return the mask of other segments, (1, 1, length, length)."""
    segment = (torch.arange(length)[:, None] >= ends[None, 1:]).sum(1)
    same = segment[:, None] == segment[None, :]
    return torch.where(same, 0.0, torch.finfo(torch.float32).min)[None, None]


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, attention.additive_mask)
AttentionInterface.register(BY_ROW, attention.attend)
AttentionMaskInterface.register(BY_ROW, partial(attention.additive_mask, by_row=True))
