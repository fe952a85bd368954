# SPDX-License-Identifier: Apache-2.0
"""Gemma 3: tokens of an image attend to one another; crops of an image are not supported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.tiles import Tiles

if TYPE_CHECKING:
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Gemma3(Tiles):
    """Images of one size, whose tokens are in one prefill call."""

    types: str = "token_type_ids"
    before: tuple[int | str, ...] = ("boi_token_index",)
    after: tuple[int | str, ...] = ("eoi_token_index",)

    marker: ClassVar[str] = "boi_token_index"
    spaced: ClassVar[str] = "\n\n{}\n\n"
    whole: ClassVar[str] = "image"

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(grid=_grid)


def _grid(tiles: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    import numpy as np

    if np.any(prepared.get("num_crops", 0)):
        raise MediaError(
            f"An image was cut into {tiles - 1} crops beside the whole, and prompts with crops are not supported; "
            "expected the whole image alone. Set `do_pan_and_scan` to false in preprocessor_config.json."
        )
    return tiles, tiles, 1
