# SPDX-License-Identifier: Apache-2.0
"""Aria: images of any size that the processor pads to a square, whose size alone sets the number of image tokens."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.sized_images import SizedImages

if TYPE_CHECKING:
    from qeff_zoo.runtime.program import Array

#: Module attribute with the number of image tokens for each number of patches.
_ROWS_OF = "patch_to_query_dict"


class _AnyNumber:
    """Key of a mapping that is equal to every number of patches."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class Aria(SizedImages):
    """Images of any size; patches with partial padding are encoded."""

    mask: str = "pixel_mask"

    def traced_with(self, model: Any) -> AbstractContextManager[Any]:
        """See `Images`: the forward returns the image tokens of the padded square for input without padding."""
        from unittest import mock

        vision = model.config.vision_config
        patches = (vision.image_size // vision.patch_size) ** 2
        module = next(submodule for submodule in model.modules() if hasattr(submodule, _ROWS_OF))
        rows = getattr(module, _ROWS_OF)[patches]
        return mock.patch.object(module, _ROWS_OF, {_AnyNumber(): rows})

    def cropped(self, tile: "Array", height: int, width: int, config: Mapping[str, Any]) -> "Array":
        """See `Images`."""
        vision = config["vision_config"]
        side, patch = int(vision["image_size"]), int(vision["patch_size"])
        if tile.shape[1:] != (side, side):
            raise MediaError(
                f"An image was padded to {tile.shape[2]} x {tile.shape[1]} pixels; expected {side} x {side}, for "
                "which this package was built. Set that size in the processor's JSON."
            )
        height, width = (-(-length // patch) * patch for length in (height, width))
        return tile[:, :height, :width]

    def padded(self, size: tuple[int, int], most: int) -> tuple[int, int]:
        """See `SizedImages`."""
        return most, most
