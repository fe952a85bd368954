# SPDX-License-Identifier: Apache-2.0
"""The attention and mask seams of transformers: an implementation named `qeff_zoo`, registered once.

Attention becomes the semantic op. Masks follow transformers' own rules (causal, sliding, chunked, bidirectional),
evaluated at the true position of every token, which the cache returns as the query offset.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AttentionInterface, AttentionMaskInterface

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)

IMPLEMENTATION = "qeff_zoo"
#: Attribute of attention modules with a query that may have no key.
MAY_LACK_KEYS = "may_lack_keys"
_HIDDEN = -1.0  # of an additive mask, whose values are 0 or far below
# Arguments of other attention flavours that change the result; a model that passes one is refused, not approximated.
_UNSUPPORTED = ("head_mask", "block_mask", "indices")


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Compute attention over the whole cache, through transformers' attention interface.

    Args:
        module: The calling attention module.
        query: (batch, heads, seq, head_dim).
        key: (batch, kv_heads, ctx, head_dim).
        value: (batch, kv_heads, ctx, value_head_dim).
        attention_mask: Additive mask, (batch or 1, heads or 1, seq, ctx); None for full attention, as in images.
        scaling: Factor of the scores; None for head_dim ** -0.5.
        dropout: Ignored; models run in evaluation mode.
        softcap: Bound of the scores by tanh; None for none.
        s_aux: Attention sinks, (heads,): one more score for each head, of a key without a value; None for none.
        position_bias: Added to the scaled scores, (batch or 1, heads, seq, ctx); None for none.
        **extra: Further arguments of a model.

    Returns:
        (batch, seq, heads, value_head_dim), and no attention weights.
    """
    present = [name for name in _UNSUPPORTED if extra.get(name) is not None]
    if present:
        raise NotImplementedError(
            f"{type(module).__name__} passes {present}, which the attention op does not compute."
        )
    _require_window(module, extra.get("sliding_window", getattr(module, "sliding_window", None)))
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    cap = float(softcap or 0.0)
    if attention_mask is None:
        attention_mask = query.new_zeros(1, 1, 1, 1)
    keyed = attention_mask
    if position_bias is not None:
        if cap:
            raise NotImplementedError(
                f"{type(module).__name__} has a position bias and a soft-cap, which no attention op computes."
            )
        attention_mask = attention_mask + position_bias
    if s_aux is None:
        mixed = torch.ops.qeff_zoo.attention(query, key, value, attention_mask, scale, cap)
        if getattr(
            module, MAY_LACK_KEYS, False
        ):  # zeros as torch's attention, not a mean of hidden keys
            has_keys = keyed.amax(-1) > _HIDDEN  # (batch or 1, 1, seq)
            mixed = mixed * has_keys.transpose(1, 2).unsqueeze(-1).to(mixed.dtype)
        return mixed, None
    if cap:
        raise NotImplementedError(
            f"{type(module).__name__} has attention sinks and a soft-cap, which no attention op computes."
        )
    sinks = s_aux.reshape(-1)
    return torch.ops.qeff_zoo.sink_attention(query, key, value, attention_mask, sinks, scale), None


def _require_window(module: nn.Module, window: int | None) -> None:
    """Refuse a sliding window without keys; a config may have one that none of its layers uses."""
    if window is not None and window <= 0:
        raise UnsupportedModelError(
            f"{type(module).__name__} has a `sliding_window` of {window}: no token attends to any key, not even its "
            "own. Expected at least 1; give the window that the checkpoint was trained with, or null for none."
        )


def additive_mask(
    *,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    by_row: bool = False,
    **_: Any,
) -> Tensor:
    """Evaluate one of transformers' mask functions at the true token positions.

    Args:
        q_length: Number of new tokens.
        kv_length: Length of the KV cache.
        mask_function: Function that is True if a query may attend, from (batch, head, query position, key position).
        q_offset: Positions of the queries, (batch, seq), from a retained state; else the position of the first query.
        kv_offset: Position of the first key; or of every key, (batch, kv), negative for none, from a retained window.
        attention_mask: Mask (batch, kv), True for a token; encoders only.
        dtype: Type of the result.
        device: Device of the result.
        by_row: Whether rules may differ per row, which those of text alone do not.

    Returns:
        (batch or 1, 1, seq, ctx): 0 if a query may attend, the lowest finite value elsewhere.
    """
    if isinstance(q_offset, Tensor) and attention_mask is None:
        window = causal_window(mask_function)
        if window is not None and isinstance(kv_offset, int):
            mask: Tensor = torch.ops.qeff_zoo.causal_mask(q_offset, kv_length, window)
            return mask.to(dtype)
        if window and isinstance(kv_offset, Tensor):
            held: Tensor = torch.ops.qeff_zoo.held_mask(q_offset, kv_offset, window)
            return held.to(dtype)
    if isinstance(q_offset, Tensor):
        queries = q_offset.unsqueeze(1).unsqueeze(3)
    else:
        queries = (torch.arange(q_length, device=device) + q_offset).view(1, 1, -1, 1)
    if isinstance(kv_offset, Tensor):
        keys = kv_offset.unsqueeze(1).unsqueeze(2)
    else:
        keys = (torch.arange(kv_length, device=device) + kv_offset).view(1, 1, 1, -1)
    none = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
    rows = torch.arange(queries.shape[0], device=device).view(-1, 1, 1, 1) if by_row else none
    allowed = mask_function(rows, none, queries, keys)
    if isinstance(kv_offset, Tensor):
        allowed = allowed & (keys >= 0)
    if attention_mask is not None:
        allowed = allowed & attention_mask.bool().unsqueeze(1).unsqueeze(2)
    return torch.where(allowed, 0.0, torch.finfo(dtype).min).to(dtype)


_FAR = 1 << 20  # a query with more keys before it than any window has
_NEAR = 48  # positions whose pairs are all tried


def causal_window(mask_function: Callable[..., Tensor]) -> int | None:
    """Return the window of a mask of the newest keys up to a query's own, by evaluation of the mask.

    Args:
        mask_function: Argument of `additive_mask`.

    Returns:
        Number of keys, 0 for all of them; None for another kind of mask.
    """
    try:
        with _disable_current_modes():  # real numbers, also while a graph is traced
            return _tried_window(mask_function)
    except (IndexError, RuntimeError):
        return None  # the mask indexes tokens beyond their number, or reads those of a run without values


def _tried_window(mask_function: Callable[..., Tensor]) -> int | None:
    def allowed(queries: Tensor, keys: Tensor) -> Tensor:
        none = torch.zeros(1, 1, 1, 1, dtype=torch.long)
        return mask_function(none, none, queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))

    near, far = torch.arange(_NEAR), torch.arange(_FAR - _NEAR, _FAR)
    if isinstance(allowed(near, near), FakeTensor):  # the mask reads values that a trace lacks
        return None
    window = int(allowed(far[-1:], torch.arange(_FAR)).sum())
    if window == 0:  # a mask that no layer uses; see `attend`
        return None

    def is_causal(queries: Tensor, keys: Tensor) -> bool:
        windowed = (keys <= queries[:, None]) & (keys > queries[:, None] - window)
        return bool((allowed(queries, keys) == windowed).all())

    edge = (far[:, None] - window + torch.arange(-1, 2)).clamp(min=0).unique()
    if window and is_causal(near, near) and is_causal(far, far) and is_causal(far, edge):
        return 0 if window == _FAR else window
    return None


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, additive_mask)
