# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of states of constant size, in torch; `semantic.states` defines them."""

import torch
from torch import Tensor


@torch.library.custom_op("qeff_zoo::state_before", mutates_args=())
def state_before(past: Tensor, position_ids: Tensor) -> Tensor:
    """Return a state with zeros in rows that start a new request."""
    fresh = (position_ids == 0).any(1).view(-1, *[1] * (past.dim() - 1))
    return torch.where(fresh, torch.zeros((), dtype=past.dtype, device=past.device), past)


@state_before.register_fake
def _(past: Tensor, position_ids: Tensor) -> Tensor:
    return torch.empty_like(past)


@torch.library.custom_op("qeff_zoo::convolution_window", mutates_args=())
def convolution_window(before: Tensor, position_ids: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns before a call followed by the new ones, and the newest of both, for the next call.

    The columns before a call directly precede a row's first token, over padding that may be there.
    """
    joined = torch.cat([before, new.to(before.dtype)], dim=2)
    kernel, total = before.shape[2], joined.shape[2]
    columns = torch.arange(total, device=joined.device)
    valid = position_ids >= 0
    first = (valid.cumsum(1) == 0).sum(1, keepdim=True)  # (B, 1), padding before the first token
    moved = torch.where(columns < first + kernel, (columns - first).clamp(min=0), columns)
    joined = joined.gather(2, moved[:, None].expand(joined.shape))
    newest = first + valid.sum(1, keepdim=True) + columns[:kernel]
    return joined, joined.gather(2, newest[:, None].expand(before.shape))


@convolution_window.register_fake
def _(before: Tensor, position_ids: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    batch, channels, kernel = before.shape
    return before.new_empty(batch, channels, kernel + new.shape[2]), torch.empty_like(before)
