# SPDX-License-Identifier: Apache-2.0
"""Aya Vision: numbered tiles, then the whole image."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qeff_zoo.multimodal.tiles import Tiles

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written


@dataclass(frozen=True, kw_only=True)
class AyaVision(Tiles):
    """Numbered tiles in the prompt."""

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(write=_write)


def _write(grid: "Grid", rows: int) -> "Written":
    each = rows // grid[0]
    tokens: Written = ["<|START_OF_IMG|>"]
    for number in range(1, grid[0]):
        tokens += [f"TILE_{number}", each]
    return [*tokens, "TILE_GLOBAL", each, "<|END_OF_IMG|>"]
