# SPDX-License-Identifier: Apache-2.0
"""Pixtral: images of any size, with a token after each line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.multimodal.image_column import ImageColumn

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Pixtral(ImageColumn):
    """Images of any size, whose lines end with a token in the prompt."""

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(grid=_grid, write=_write)


def _grid(_: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    unit = int(config["vision_config"]["patch_size"]) * int(config.get("spatial_merge_size", 1))
    height, width = (int(pixels) // unit for pixels in prepared["image_sizes"].reshape(2))
    return 1, height, width


def _write(grid: "Grid", rows: int) -> "Written":
    line: Written = [grid[2], "[IMG_BREAK]"]
    return [*(line * grid[1])[:-1], "[IMG_END]"]
