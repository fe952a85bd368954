# SPDX-License-Identifier: Apache-2.0
"""Image processor of PaddleOCR-VL; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.patch_rules import smart_size
from qeff_zoo.media.pixels import Settings, joined, numbers, resize


def lines_of_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """PaddleOCR-VL: patches in row-major order, of images with no side shorter than a merged patch.

    Returns `pixel_values` (patches of all images, 3, rows, columns) and `image_grid_thw`, as `grid_of_patches`.
    """
    patch, size = settings["patch_size"], settings["size"]
    if (deep := settings["temporal_patch_size"]) != 1:
        raise CheckpointError(
            f"Cannot cut an image into patches: `temporal_patch_size` is {deep!r}, and each patch is one of one image. "
            "Expected 1. Correct the processor's JSON."
        )
    factor, rows, grids = patch * settings["merge_size"], [], []
    for image in images:
        if settings["do_resize"]:
            wide = np.broadcast_to(image[:1, :1], (*_at_least(image, factor), 3))
            wanted = smart_size(wide, factor, size["shortest_edge"], size["longest_edge"])
            image = resize(image, *wanted, settings["resample"])
        array = np.asarray(numbers(image, settings), np.float32)
        high, wide_ = array.shape[1] // patch, array.shape[2] // patch
        blocks = array.reshape(3, high, patch, wide_, patch).transpose(1, 3, 0, 2, 4)
        rows.append(blocks.reshape(high * wide_, 3, patch, patch))
        grids.append([1, high, wide_])
    return {"pixel_values": joined(rows), "image_grid_thw": np.array(grids, np.int64)}


def _at_least(image: Pixels, factor: int) -> tuple[int, int]:
    """Return the height and width of the same aspect ratio, with no side below `factor`."""
    height, width = image.shape[:2]
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    return height, width
