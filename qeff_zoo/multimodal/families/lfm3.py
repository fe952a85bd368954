# SPDX-License-Identifier: Apache-2.0
"""LFM3-VL: patches of images of any size, between whose layers convolutions read the patches around each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry

#: Attribute of a layer's module with the convolution over rows and columns of patches.
_CONVOLUTION = "spatial_conv"


@dataclass(frozen=True, kw_only=True)
class Lfm3Vl(PatchGrid):
    """Patches of images and videos, which layers find by rows and columns: a program has no sizes."""

    def traced_module(self, model: Any, geometry: "PatchGeometry", names: list[str]) -> Any:
        """As of `PatchGrid`."""
        from qeff_zoo.multimodal.tracing.forward_patches import swapped
        from qeff_zoo.multimodal.tracing.patch_tracing import Patches

        layers = [module for module in model.modules() if hasattr(module, _CONVOLUTION)]
        size = model.config.vision_config.conv_kernel_size

        class Surrounded(Patches):
            def forward(self, given: Sequence[Any]) -> tuple[Any, ...]:
                inputs = dict(zip(names, given, strict=True))
                around = _around(inputs["position_ids"], inputs["cu_seqlens"], geometry.merge, size)
                convolve = partial(_convolve, around=around)
                with swapped(*((layer, "forward", partial(convolve, layer)) for layer in layers)):
                    return super().forward(given)

        return Surrounded(model, names[1:], geometry, 0)


def _around(positions: Any, ends: Any, merge: int, size: int) -> list[tuple[Any, Any]]:
    """Return of each patch its neighbors, in the order of a convolution's weights, and whether each is in the image.

    Args:
        positions: (patches, 2), row and column of each, square by square of those that are merged.
        ends: (segments + 1,), where frames begin and end among the patches.
        merge: Patches on a side of a square.
        size: Rows and columns of the convolution.
    """
    import torch

    count = positions.shape[0]
    segment = (torch.arange(count)[:, None] >= ends[None, 1:]).sum(1)
    begun = ends[segment.clamp(max=ends.shape[0] - 1)]
    rows, columns = positions.unbind(1)
    height, width = rows.max() + 1, columns.max() + 1
    neighbors = []
    for down in range(-(size // 2), size // 2 + 1):
        for right in range(-(size // 2), size // 2 + 1):
            row, column = rows + down, columns + right
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            row, column = row.clamp(min=0), column.clamp(min=0)
            square = (row // merge) * (width // merge) + column // merge
            index = begun + square * merge**2 + (row % merge) * merge + column % merge
            neighbors.append((index.clamp(max=count - 1), inside[:, None]))
    return neighbors


def _convolve(layer: Any, hidden_states: Any, around: list[tuple[Any, Any]], **_: Any) -> Any:
    """Run a layer's gated convolution, (patches, width), with neighbors in place of sizes."""
    before, behind, values = layer.in_proj(hidden_states).chunk(3, dim=-1)
    gated = before * values
    weights = getattr(layer, _CONVOLUTION).weight.flatten(1)  # (width, neighbors)
    parts = [
        gated[index] * inside * weights[:, place] for place, (index, inside) in enumerate(around)
    ]
    return layer.out_proj(behind * sum(parts))
