# SPDX-License-Identifier: Apache-2.0
"""LFM2-VL: tiles of any size, each a padded sequence of patches, with tile names in the prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.patch_grid import PatchGrid

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array

#: Array of the processor with rows and columns of each tile's patches.
_SHAPES = "spatial_shapes"
#: Merged squares of a random sequence for validation, including padding.
_PADDED = 7


@dataclass(frozen=True, kw_only=True)
class Lfm2Vl(PatchGrid):
    """Tiles of any size, one by one, each a sequence of patches that the processor pads."""

    lines: ClassVar[bool] = True
    taps: str = "antialiased"

    mask: ClassVar[str] = "pixel_attention_mask"
    placed: ClassVar[bool] = False

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(grid=_grid, write=_write)

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True

    def traced_module(self, model: Any, geometry: "PatchGeometry", names: list[str]) -> Any:
        """See `PatchGrid`."""
        from qeff_zoo.multimodal.tracing.vision_tracing import Shaped

        return Shaped(model, geometry.merge)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`: tile by tile, of patches (tiles, patches, values)."""
        import numpy as np

        features, pixels = [], np.asarray(prepared[self.pixels], np.float32)
        shapes = prepared[_SHAPES].reshape(-1, 2).tolist()
        for tile, (height, width) in zip(pixels, shapes, strict=True):
            grid = 1, height, width
            patches = vision.geometry.ordered(tile[: height * width], grid)
            features.append(vision.run({self.pixels: patches, **vision.geometry.describe(grid)}))
        return vision.joined(digest, features, prepared)

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`: one tile, padded."""
        import numpy as np

        merge = vision.geometry.merge
        height, width = (side * merge for side in size)
        values = [
            length for length in vision.program.inputs[self.pixels].shape if isinstance(length, int)
        ]
        room = _PADDED * merge**2
        return {
            _SHAPES: np.array([[height, width]]),
            self.mask: (np.arange(room) < height * width)[None].astype(np.int64),
            self.pixels: random.standard_normal((1, room, *values), np.float32),
        }


def _grid(tiles: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    """Return the image tokens of the first tile, and the rows and columns of tiles, both returned only on request."""
    import numpy as np

    if tiles > 1 and not {"image_rows", "image_cols"} <= prepared.keys():
        raise MediaError(
            f"Cannot order the {tiles} tiles of an image: image_rows or image_cols is missing. Expected both, which "
            "the image processor returns with return_row_col_info=True. Call it with that argument."
        )
    tall, wide = (
        int(np.reshape(prepared[name], -1)[0]) if name in prepared else 1
        for name in ("image_rows", "image_cols")
    )
    first = int(prepared[_SHAPES].reshape(-1, 2)[0].prod())
    return first // int(config["downsample_factor"]) ** 2, tall, wide


def _write(grid: "Grid", rows: int) -> "Written":
    each, tall, wide = grid
    whole = rows - each * tall * wide
    tokens: Written = []
    for row in range(tall):
        for column in range(wide):
            tokens += [f"<|img_row_{row + 1}_col_{column + 1}|>", each]
    if whole:
        tokens += ["<|img_thumbnail|>", whole]
    return ["<|image_start|>", *(tokens if tall * wide > 1 else [rows]), "<|image_end|>"]
