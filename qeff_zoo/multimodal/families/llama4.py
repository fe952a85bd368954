# SPDX-License-Identifier: Apache-2.0
"""Llama 4: tiles with tokens between them, then the whole image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.tiles import Tiles

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Llama4(Tiles):
    """Tiles with separator tokens in the prompt."""

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(grid=_grid, write=_write)


def _grid(tiles: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    import numpy as np

    rows, columns = prepared.get("aspect_ratios", np.array([tiles - 1, 1])).reshape(2)
    return tiles, int(rows), int(columns)


def _write(grid: "Grid", rows: int) -> "Written":
    tiles, tall, wide = grid
    each = rows // tiles
    tokens: Written = ["<|image_start|>"]
    for _ in range(tall if tiles > 1 else 0):
        tokens += [each, "<|tile_x_separator|>"] * wide
        tokens[-1] = "<|tile_y_separator|>"
    return [*tokens, "<|image|>", each, "<|image_end|>"]
