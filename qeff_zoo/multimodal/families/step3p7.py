# SPDX-License-Identifier: Apache-2.0
"""Step 3.7: tiles in row-major order, then the whole image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.two_sizes import TwoSizes

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Step3p7(TwoSizes):
    """Tiles between tokens, with a token after each line of them."""

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(arrange=_arrange, grid=_grid, write=_write)


def _arrange(tiles: "Sequence[Array]", prepared: "Mapping[str, Array]", config: Any) -> "Array":
    import numpy as np

    whole, *parts = tiles
    return np.concatenate([*parts, whole])


def _grid(tiles: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    """Return the image tokens of the whole image, one for sixteen patches, and the rows and columns of tiles."""
    import numpy as np

    side = int(prepared["pixel_values"].shape[-1]) // int(config["vision_config"]["patch_size"])
    tall, wide = (int(size) for size in np.reshape(prepared.get("grids", (tiles - 1, 1)), -1))
    return (side // 4) ** 2, tall, wide


def _write(grid: "Grid", rows: int) -> "Written":
    whole, tall, wide = grid
    tokens: Written = []
    for _ in range(tall):
        part: Written = ["<patch_start>", (rows - whole) // (tall * wide), "<patch_end>"]
        tokens += [*part * wide, "<patch_newline>"]
    return [*tokens[:-1], "<im_start>", whole, "<im_end>"]
