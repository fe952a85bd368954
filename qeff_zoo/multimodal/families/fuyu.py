# SPDX-License-Identifier: Apache-2.0
"""Fuyu: a matrix projects each patch to an image token, without a vision encoder."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Fuyu(Images):
    """Patches of images of any size, each an image token; lines of patches end with a newline token."""

    after: tuple[int | str, ...] = ("<s>",)
    text: str = "{}<0x04>"

    any_size: ClassVar[bool] = True

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout, processed_grid

        return Layout(grid=processed_grid, write=_write)

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import vision_tracing

        return vision_tracing.of_patches(model)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`: all patches together."""
        import numpy as np

        from qeff_zoo.runtime.decoding.multimodal_spans import Encoded

        outputs = vision.run({self.pixels: np.asarray(prepared[self.pixels], np.float32)})
        grid = self.prompt_layout.grid(1, prepared, vision.config)
        return Encoded(digest=digest, features=outputs, grid=grid)

    def rows_of(self, vision: "Vision", inputs: "Mapping[str, Array]") -> int | None:
        """See `Images`."""
        return len(inputs[self.pixels])

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        values = [
            length for length in vision.program.inputs[self.pixels].shape if isinstance(length, int)
        ]
        pixels = random.standard_normal((math.prod(size), *values), np.float32)
        return {"grids": np.array([size]), self.pixels: pixels}


def _write(grid: "Grid", rows: int) -> "Written":
    line: Written = [rows // grid[1], "|NEWLINE|"]
    return line * grid[1]
