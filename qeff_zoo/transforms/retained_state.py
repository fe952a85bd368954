# SPDX-License-Identifier: Apache-2.0
"""The cache seam: what transformers needs of a cache, writing into tensors that the caller keeps between calls."""

from typing import Any

import torch
from torch import Tensor

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.layers import plain

#: Per layer index: (key, value), each (batch or slots, kv_heads, ctx_len, head_dim).
States = dict[int, tuple[Tensor, Tensor]]


class RetainedState:
    """Stands in for a transformers cache: new tokens go to their positions, attention sees the whole context.

    Args:
        past: States before the call; empty to find out their shapes (see `Probe`).
        position_ids: (batch, seq); -1 is padding and writes nothing.
        batch_index: (batch, 1), the cache slot of each row, for continuous batching.
    """

    is_compileable = True

    def __init__(
        self, past: States, position_ids: Tensor, batch_index: Tensor | None = None
    ) -> None:
        self.past, self.position_ids, self.batch_index = past, position_ids, batch_index
        self.present: States = {}

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (batch, kv_heads, seq, head_dim) at the positions; return the whole context of each row."""
        layer = plain(layer_idx)
        present = tuple(
            self._write(past, new) for past, new in zip(self.past[layer], (key, value), strict=True)
        )
        self.present[layer] = (present[0], present[1])
        if self.batch_index is None:
            return self.present[layer]
        return (
            torch.ops.qeff_zoo.slot_read(present[0], self.batch_index),
            torch.ops.qeff_zoo.slot_read(present[1], self.batch_index),
        )

    def _write(self, past: Tensor, new: Tensor) -> Any:
        if self.batch_index is None:
            return torch.ops.qeff_zoo.cache_write(past, self.position_ids, new)
        return torch.ops.qeff_zoo.slot_write(past, self.batch_index, self.position_ids, new)

    def _ctx_len(self) -> int:
        return next(iter(self.past.values()))[0].shape[2]

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        """The true positions, (batch, seq): masks are evaluated there. Padding looks at position 0."""
        return self.position_ids.clamp(min=0)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Number of keys a mask covers, and the position of the first."""
        return self._ctx_len(), 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys before this call's, such that with them there are as many as cache rows (ALiBi counts so)."""
        return self._ctx_len() - self.position_ids.shape[1]

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Rows of the cache."""
        return self._ctx_len()

    def __len__(self) -> int:
        return len(self.past)


class Probe(RetainedState):
    """Notes the shape of every layer's state in one forward call, and stores nothing."""

    def __init__(self, position_ids: Tensor) -> None:
        super().__init__({}, position_ids)

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes and hand back what came."""
        self.present[plain(layer_idx)] = (key, value)
        return key, value

    def _ctx_len(self) -> int:
        return int(self.position_ids.shape[1])
