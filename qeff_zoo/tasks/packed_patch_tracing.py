# SPDX-License-Identifier: Apache-2.0
"""Tiles of any size, patches of which lie side by side in one line, as they are traced: see `tasks.patch_tracing`."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.tasks.patch_tracing import Sizes, rows_of


class Packed(nn.Module):
    """Patches of a tile up to its features, of a forward that is told the height and width of each tile.

    It is told those of one column of squares of merged patches: where they really lie is in the positions. Patches of a
    square lie in the order in which they are merged, first those of smaller squares within the tower.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        merge: Patches on a side of what becomes a row.
    """

    def __init__(self, model: Any, merge: int) -> None:
        super().__init__()
        self.model, self.merge = model, merge

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features of patches, (patches, channels, rows, columns), ends and positions."""
        patches, ends, places = given
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
                position_ids=places[:, 0],
                window_index=torch.arange(count),
                cu_window_seqlens=inner**2 * torch.arange(windows + 1),
                max_seqlen=1,
            )
        return (rows_of(output.pooler_output),)
