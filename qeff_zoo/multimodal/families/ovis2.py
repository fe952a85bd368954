# SPDX-License-Identifier: Apache-2.0
"""Ovis 2: the whole image, then its tiles, with embeddings of the visual indicator tokens around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.program import Array

_AROUND = "visual_indicator_token_ids"


@dataclass(frozen=True, kw_only=True)
class Ovis2(Images):
    """Tiles between visual indicator tokens."""

    marker: str = "<image>"

    around: ClassVar[str] = _AROUND

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout, processed_grid

        return Layout(arrange=_arrange, grid=processed_grid, write=_write)

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True


def _between(grid: "Grid") -> list[int]:
    """Return the numbers of the visual indicator tokens before each tile, and at the end."""
    begin, whole, column, row, end = range(5)
    _, tall, wide = grid
    line = [*[column] * (wide - 1), row]
    return [begin, whole, *((line * tall)[:-1] if tall * wide > 1 else ()), end]


def _arrange(tiles: "Sequence[Array]", prepared: "Mapping[str, Array]", config: Any) -> "Array":
    """Return tiles with the features of indicator tokens around them, all of which follow each tile in the input."""
    import numpy as np

    from qeff_zoo.runtime.caches.image_prompt_templates import processed_grid

    count = len(config[_AROUND])
    around, each = tiles[0][-count:], [tile[:-count] for tile in tiles]
    rows: list[Array] = []
    for at, number in enumerate(_between(processed_grid(len(tiles), prepared, config))):
        rows += [around[number : number + 1], *each[at : at + 1]]
    return np.concatenate(rows)


def _write(grid: "Grid", rows: int) -> "Written":
    between = _between(grid)
    each = (rows - len(between)) // grid[0]
    tokens: Written = []
    for at, number in enumerate(between):
        tokens += [f"{_AROUND}.{number}", *[each][: at < grid[0]]]
    return tokens
