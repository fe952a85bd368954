# SPDX-License-Identifier: Apache-2.0
"""Image processor of Cosmos 3 Edge; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.patch_rules import grid_of_frames
from qeff_zoo.media.pixels import Settings


def grid_of_pixels(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Cosmos 3 Edge: `grid_of_frames` with the values of a patch ordered pixel by pixel."""
    arrays = grid_of_frames(images, settings)
    patch, deep = settings["patch_size"], settings["temporal_patch_size"]
    planes = arrays["pixel_values"].reshape(-1, 3, deep, patch, patch)
    return {**arrays, "pixel_values": planes.transpose(0, 3, 4, 1, 2).reshape(len(planes), -1)}
