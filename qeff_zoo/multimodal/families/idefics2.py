# SPDX-License-Identifier: Apache-2.0
"""Idefics 2: tiles of any size, each between tokens, which adjacent tiles share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qeff_zoo.multimodal.sized_images import SizedImages

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written


@dataclass(frozen=True, kw_only=True)
class Idefics2(SizedImages):
    """Tiles of any size, padded."""

    mask: ClassVar[str] = "pixel_attention_mask"
    nested: ClassVar[bool] = True
    spaced: ClassVar[str] = "{} "

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(write=_write, joined=True)

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True


def _write(grid: "Grid", rows: int) -> "Written":
    part: Written = [rows // grid[0], "<fake_token_around_image>"]
    return [part[1], *part * grid[0]]
