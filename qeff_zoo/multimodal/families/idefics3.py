# SPDX-License-Identifier: Apache-2.0
"""Idefics 3: tiles with their row and column in the prompt, then the whole image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.tiles import Tiles

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Idefics3(Tiles):
    """Tiles with names in the prompt."""

    nested: ClassVar[bool] = True

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(grid=grid_of, write=_write)


def grid_of(tiles: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    """Return the grid of Idefics 3's processor, which counts no tiles for an image without tiles."""
    rows, columns = (
        int(prepared[name].reshape(-1)[0]) if name in prepared else 0 for name in ("rows", "cols")
    )
    return tiles, rows, columns


def _write(grid: "Grid", rows: int) -> "Written":
    each = rows // grid[0]
    tokens: Written = []
    for row in range(grid[1]):
        for column in range(grid[2]):
            tokens += ["<fake_token_around_image>", f"<row_{row + 1}_col_{column + 1}>", each]
        tokens.append("\n")
    tokens[-1:] = ["\n\n"] if tokens else []
    return [*tokens, "<fake_token_around_image>", "<global-img>", each, "<fake_token_around_image>"]
