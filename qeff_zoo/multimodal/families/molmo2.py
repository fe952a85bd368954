# SPDX-License-Identifier: Apache-2.0
"""Molmo 2: overlapping crops of an image; each image token is pooled from patches of several crops."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.errors import GenerationError
from qeff_zoo.multimodal.images import Images

if TYPE_CHECKING:
    from qeff_zoo.contract import Tracing
    from qeff_zoo.multimodal.encoding.vision_encoder import Vision
    from qeff_zoo.runtime.caches.image_prompt_templates import Grid, Layout, Written
    from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
    from qeff_zoo.runtime.program import Array

_IMAGE = (
    "low_res_image_start_token_id",
    "image_start_token_id",
    "image_col_id",
    "image_end_token_id",
)
_FRAME = "frame_start_token_id", "frame_end_token_id"
#: Array of the processor with the patches of each image token, counted over all crops of an image, -1 for padding.
POOLING = "image_token_pooling"
#: Array of the processor with the rows and columns of image tokens of the whole image and of its canvas.
GRIDS = "image_grids"


@dataclass(frozen=True, kw_only=True)
class Molmo2(Images):
    """All crops of an image in one call, with the patches pooled into each image token."""

    token: str = "image_patch_id"
    types: str = "mm_token_type_ids"
    whole: str = "images"
    marker: str = "<|image|>"

    any_size: ClassVar[bool] = True
    among: ClassVar[tuple[str, ...]] = (*_IMAGE, *_FRAME)
    #: Further arrays of the processor, with a number for each patch of each crop.
    of_patches: ClassVar[tuple[str, ...]] = ()
    opening: ClassVar[tuple[str, ...]] = ("bos_token", "eos_token")

    @property
    def one_piece(self) -> bool:
        """See `Images`."""
        return False

    @property
    def prompt_layout(self) -> "Layout":
        """See `Images`."""
        from qeff_zoo.runtime.caches.image_prompt_templates import Layout

        return Layout(
            grid=grid_of,
            write=_write,
            settings=(
                "image_use_col_tokens",
                "use_single_crop_col_tokens",
                "use_single_crop_start_token",
                "video_use_col_tokens",
                "use_frame_special_tokens",
            ),
        )

    def trace(self, model: Any, *, side: int | None = None) -> "Tracing":
        """See `Images`."""
        from qeff_zoo.multimodal.tracing import overlapping_crop_tracing

        return overlapping_crop_tracing.tracing(model, POOLING, self.of_patches)

    def encode(self, vision: "Vision", digest: bytes, prepared: "Mapping[str, Array]") -> "Encoded":
        """See `Images`: all crops together, since an image token is pooled from patches of several."""
        import numpy as np

        from qeff_zoo.runtime.decoding.multimodal_spans import Encoded

        numbers = {name: prepared[name] for name in (self.pixels, *self.of_patches)}
        numbers = {
            name: np.ascontiguousarray(number, np.float32) for name, number in numbers.items()
        }
        outputs = vision.run({**numbers, POOLING: prepared[POOLING].astype(np.int64)})
        grid = self.prompt_layout.grid(len(prepared[self.pixels]), prepared, vision.config)
        return Encoded(digest=digest, features=outputs, grid=grid)

    def rows_of(self, vision: "Vision", inputs: "Mapping[str, Array]") -> int | None:
        """See `Images`."""
        return len(inputs[POOLING])

    def check_prompt(self, images: int, videos: int) -> None:
        """See `Images`: the model accepts at most one video, without images."""
        if videos and images + videos > 1:
            raise GenerationError(
                f"The prompt has {videos} videos and {images} images; expected one video alone, as this "
                "model reads them. Leave the others out."
            )

    def video_arrays(
        self, pixels: "Array", given: Mapping[str, Any], known: "Mapping[str, Array]"
    ) -> "dict[str, Array]":
        """See `Images`."""
        import numpy as np

        _, rows, columns = (int(one) for one in np.reshape(given["video_grids"], 3))
        each = np.asarray(given["video_token_pooling"])[: rows * columns]  # equal for every frame
        return {
            "pixel_values": pixels, POOLING: each, GRIDS: np.array([[rows, columns, 0, 0]]), **known
        }  # fmt: skip

    def video_rows(self, prepared: "Mapping[str, Array]", config: Mapping[str, Any]) -> int:
        """See `Images`."""
        return len(prepared["pixel_values"]) * len(prepared[POOLING])

    @property
    def drawn_as_pixels(self) -> bool:
        """See `Images`."""
        return True

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> "dict[str, Array]":
        """See `Images`: the whole image and one crop."""
        import numpy as np

        from qeff_zoo.media.families.molmo import squares_of

        values = [
            length for length in vision.program.inputs[self.pixels].shape if isinstance(length, int)
        ]
        side = math.isqrt(values[0])
        squares, grid = squares_of(np.arange(side**2).reshape(side, side), (2, 2))
        second = np.where(squares < 0, -1, squares + side**2)
        return {
            POOLING: np.concatenate([squares, second]),
            GRIDS: np.array([[*grid, *grid]]),
            self.pixels: random.standard_normal((2, *values), np.float32),
        }

    def joined(self, arrays: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """See `Images`: patches are counted over the crops of all images."""
        import torch

        pooling, before = [], 0
        for part, crops in zip(arrays[POOLING], arrays[self.pixels], strict=True):
            pooling.append(torch.where(part < 0, part, part + before))
            before += crops.shape[0] * crops.shape[1]
        return {**arrays, POOLING: pooling}


def grid_of(_: int, prepared: "Mapping[str, Array]", config: Any) -> "Grid":
    """Return the number of image tokens of the whole image, and rows and columns of those of its canvas."""
    down, right, tall, wide = (int(one) for one in prepared[GRIDS].reshape(4))
    return down * right, tall, wide


def _write(
    grid: "Grid",
    rows: int,
    image_use_col_tokens: bool | None = True,
    use_single_crop_col_tokens: bool | None = None,
    use_single_crop_start_token: bool | None = True,
    video_use_col_tokens: bool | None = False,
    use_frame_special_tokens: bool | None = True,
) -> "Written":
    """Return the placeholder tokens of an image, the whole and its canvas; without a canvas, of a video frame."""
    first, tall, wide = grid
    side, end = math.isqrt(first), "image_end_token_id"
    if not tall:
        kind = "frame" if use_frame_special_tokens else "image"
        every: Written = [side, *["image_col_id"] * bool(video_use_col_tokens)]
        return [f"{kind}_start_token_id", *every * side, f"{kind}_end_token_id"]
    ended, own = image_use_col_tokens, use_single_crop_col_tokens
    line: Written = [wide, *["image_col_id"] * bool(ended)]
    of_whole: Written = [side, *["image_col_id"] * bool(ended if own is None else own)]
    begin = f"{'low_res_' if use_single_crop_start_token else ''}image_start_token_id"
    return [begin, *of_whole * side, end, "image_start_token_id", *line * tall, end]
