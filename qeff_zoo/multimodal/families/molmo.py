# SPDX-License-Identifier: Apache-2.0
"""Molmo: crops as those of Molmo 2, with shares of padding, before all text; attention is causal."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.families.molmo2 import GRIDS, POOLING, Molmo2, grid_of

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array

#: Array of the processor with the share of each patch that is no padding.
_MASKS = "image_masks"
#: Array of the processor in the checkpoints' code, with the position in the prompt of each square of patches; negative
#: for a square without one.
_PLACES = "image_input_idx"
#: Patches on each side of a square.
_POOL = 2, 2


@dataclass(frozen=True, kw_only=True)
class Molmo(Molmo2):
    """All crops of an image in one call; their arrays may be those of the processor in the checkpoints' code."""

    types: str = ""
    whole: str = ""

    among: ClassVar[tuple[str, ...]] = (
        "image_start_token_id", "image_col_id", "image_end_token_id",
    )  # fmt: skip
    before_text: ClassVar[str] = " "
    of_patches: ClassVar[tuple[str, ...]] = (_MASKS,)

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        def grid(tiles: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
            return grid_of(tiles, self.arranged(prepared), config)

        return Layout(grid=grid, write=_write)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`."""
        return super().encode(vision, digest, self.arranged(prepared))

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        inputs = super().sample(vision, size, random)
        shares = random.integers(-1, 2, inputs[self.pixels].shape[:2])
        return {**inputs, _MASKS: shares.astype(np.float32)}

    def arranged(self, prepared: "Mapping[str, Array]") -> "Mapping[str, Array]":
        """Return the arrays of an image with the patches of each image token, in the order of the prompt.

        Args:
            prepared: Arrays of our processor, or of that in the checkpoints' code, perhaps with an axis of prompts.

        Raises:
            MediaError: Places are those of several images, which that code puts at the same tokens.
        """
        import numpy as np

        from qeff_zoo.media.families.molmo import squares_of

        if _PLACES not in prepared:
            return prepared
        pixels, indices = prepared["pixel_values"], prepared[_PLACES]
        pixels = pixels.reshape(-1, *pixels.shape[-2:])
        count, within = pixels.shape[:2]
        side = math.isqrt(within)
        squares, (rows, columns) = squares_of(np.arange(within).reshape(side, -1), _POOL)
        known = indices[indices >= 0]
        if indices.size != count * len(squares) or len(known) > len(np.unique(known)):
            raise MediaError(
                f"An image was prepared, and {_PLACES} is {indices.shape} with {len(known)} places; expected "
                f"({count}, {len(squares)}) with places that differ: the model's own processor puts several images "
                "at the same tokens. Call it with one image."
            )
        every = squares + within * np.arange(count)[:, None, None]
        pooled = every.reshape(indices.size, -1)[indices.reshape(-1) >= 0][np.argsort(known)]
        canvas = np.sort(known)[rows * columns :]
        ends = np.flatnonzero(np.diff(canvas, append=-1) != 1)  # of each row
        grid = [rows, columns, len(ends), len(canvas) // len(ends)]
        masks = prepared[_MASKS].reshape(count, within)
        return {"pixel_values": pixels, _MASKS: masks, POOLING: pooled, GRIDS: np.array([grid])}


def _write(grid: "Grid", rows: int) -> "Written":
    """Return the placeholder tokens of an image: the whole, and its canvas."""
    first, tall, wide = grid
    side = math.isqrt(first)
    begin, column, end = Molmo.among
    row_of_whole: Written = [side, column]
    row: Written = [wide, column]
    return [begin, *row_of_whole * side, end, begin, *row * tall, end]
