# SPDX-License-Identifier: Apache-2.0
"""Tiles of any size with packed patches, for tracing: see `qeff_zoo.multimodal.tracing.patch_tracing`."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.multimodal.tracing.patch_tracing import Sizes, rows_of


class Packed(nn.Module):
    """Patches of a tile up to its features, for a forward that takes the height and width of each tile.

    The forward takes the height and width of one column of merged squares: positions are a separate input. Patches of a
    square are in the order of merging, starting with the smaller squares within the encoder.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        merge: Number of patches on a side of a feature row.
    """

    def __init__(self, model: Any, merge: int) -> None:
        super().__init__()
        self.model, self.merge = model, merge

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows of patches, (patches, channels, rows, columns), ends and positions."""
        patches, ends, positions = given
        count, channels, side = patches.shape[:3]
        line = patches.permute(1, 2, 0, 3).reshape(1, channels, side, count * side)
        config, merger = self.model.config, self.model.model.merger
        outer = config.merge_kernel_size[0] ** config.merger_times
        inner = self.merge // outer
        lengths = ends[1:] - ends[:-1]
        sizes = torch.stack([lengths // self.merge, torch.full_like(lengths, self.merge)], 1)
        rows, join = count // self.merge**2, merger.forward

        def one_column(hidden: Tensor, _: Tensor) -> Any:
            return join(hidden, Sizes([[outer * rows, outer]]))

        windows = count // inner**2
        with Concrete(), mock.patch.dict(vars(merger), {"forward": one_column}):
            output = self.model.get_image_features(
                pixel_values=line,
                target_sizes=sizes,
                position_ids=positions[:, 0],
                window_index=torch.arange(count),
                cu_window_seqlens=inner**2 * torch.arange(windows + 1),
                max_seqlen=1,
            )
        return (rows_of(output.pooler_output),)
