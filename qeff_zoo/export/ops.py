# SPDX-License-Identifier: Apache-2.0
"""Semantic ops in torch: runnable references, for comparisons of a transformed model with Hugging Face.

Each has a fake for tracing beside it. `semantic` defines the computation and shapes of an op.
"""

import torch
from torch import Tensor

from . import attention_ops, experts_ops, recurrence_ops, state_ops  # noqa: F401  (register their ops)


@torch.library.custom_op("qeff_zoo::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, epsilon: float, offset: float) -> Tensor:
    """Normalize by the root mean square in float32 and scale by `weight + offset`."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * (weight.float() + offset)).to(x.dtype)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, epsilon: float, offset: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("qeff_zoo::lora", mutates_args=())
def lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """Add the adapter of each row: to `y`, the product of its row of `x` with the low-rank matrices."""
    slots = ids[:, 0]
    by_row = x.reshape(len(slots), -1, x.shape[-1])
    return y + ((by_row @ a[slots]) @ b[slots]).reshape(y.shape)


@lora.register_fake
def _(y: Tensor, x: Tensor, a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    return y.new_empty(y.shape)


def _write(past: Tensor, slots: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    present = past.clone()
    valid = position_ids >= 0
    row, column = valid.nonzero(as_tuple=True)
    present[slots[row, 0], :, position_ids[row, column]] = new.transpose(1, 2)[row, column].to(
        past.dtype
    )
    return present


@torch.library.custom_op("qeff_zoo::cache_write", mutates_args=())
def cache_write(past: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    """Return `past` with the new tokens written at their positions; row b writes to cache row b."""
    return _write(past, torch.arange(len(new), device=new.device)[:, None], position_ids, new)


@cache_write.register_fake
def _(past: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    return torch.empty_like(past)


@torch.library.custom_op("qeff_zoo::slot_write", mutates_args=())
def slot_write(past: Tensor, batch_index: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    """Write like `cache_write`, into the batch slot of each row, `batch_index` (B, 1)."""
    return _write(past, batch_index, position_ids, new)


@slot_write.register_fake
def _(past: Tensor, batch_index: Tensor, position_ids: Tensor, new: Tensor) -> Tensor:
    return torch.empty_like(past)


@torch.library.custom_op("qeff_zoo::slot_read", mutates_args=())
def slot_read(cache: Tensor, batch_index: Tensor) -> Tensor:
    """Return the batch slots of `batch_index`."""
    return cache[batch_index[:, 0]]


@slot_read.register_fake
def _(cache: Tensor, batch_index: Tensor) -> Tensor:
    return cache.new_empty(batch_index.shape[0], *cache.shape[1:])


@torch.library.custom_op("qeff_zoo::slot_replace", mutates_args=())
def slot_replace(past: Tensor, batch_index: Tensor, rows: Tensor) -> Tensor:
    """Return `past` with whole slots replaced."""
    present = past.clone()
    present[batch_index[:, 0]] = rows.to(past.dtype)
    return present


@slot_replace.register_fake
def _(past: Tensor, batch_index: Tensor, rows: Tensor) -> Tensor:
    return torch.empty_like(past)
