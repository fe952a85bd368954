# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of recurrences in torch; `semantic.recurrence` defines them."""

import torch
from torch import Tensor


def _recur(
    state: Tensor, log_decay: Tensor, key: Tensor, value: Tensor, query: Tensor, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    wide, decay = state.float(), log_decay.float().exp()
    shared = value.shape[2] // key.shape[2]
    key, query = (
        projection.float().repeat_interleave(shared, dim=2) for projection in (key, query)
    )
    outputs = []
    for t in range(value.shape[1]):
        wide = wide * decay[:, t].unsqueeze(-1)
        row = value[:, t].float().unsqueeze(-2)
        if beta is not None:
            read = key[:, t].unsqueeze(-2) @ wide
            row = (row - read) * beta[:, t].float().unsqueeze(-1).unsqueeze(-1)
        wide = wide + key[:, t].unsqueeze(-1) * row
        outputs.append((query[:, t].unsqueeze(-2) @ wide).squeeze(-2))
    return torch.stack(outputs, 1).to(value.dtype), wide.to(state.dtype, copy=True)


@torch.library.custom_op("qeff_zoo::linear_recurrence", mutates_args=())
def linear_recurrence(
    state: Tensor, log_decay: Tensor, key: Tensor, value: Tensor, query: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output after each token, and the last state."""
    return _recur(state, log_decay, key, value, query, None)


@linear_recurrence.register_fake
def _(
    state: Tensor, log_decay: Tensor, key: Tensor, value: Tensor, query: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(state)


@torch.library.custom_op("qeff_zoo::delta_recurrence", mutates_args=())
def delta_recurrence(
    state: Tensor, log_decay: Tensor, key: Tensor, value: Tensor, query: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `linear_recurrence` by the delta rule with rate `beta`."""
    return _recur(state, log_decay, key, value, query, beta)


@delta_recurrence.register_fake
def _(
    state: Tensor, log_decay: Tensor, key: Tensor, value: Tensor, query: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(state)
