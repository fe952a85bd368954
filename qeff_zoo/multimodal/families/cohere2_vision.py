# SPDX-License-Identifier: Apache-2.0
"""Command A Vision: tiles, each of which ends with a token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qeff_zoo.multimodal.tiles import Tiles

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written


@dataclass(frozen=True, kw_only=True)
class Cohere2Vision(Tiles):
    """Tiles with a token after each."""

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(write=_write)


def _write(grid: "Grid", rows: int) -> "Written":
    tile: Written = [rows // grid[0], "<|IMG_LINE_BREAK|>"]
    return ["<|START_OF_IMG|>", *tile * grid[0], "<|END_OF_IMG|>"]
