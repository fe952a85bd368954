# SPDX-License-Identifier: Apache-2.0
"""Image processor of Kimi K2.5; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, joined
from qeff_zoo.media.torchvision_rules import padded_below, rescaled, resized


def padded_lines_of_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Kimi K2.5: patches in row-major order, of an image that is reduced if it is large, and padded with black.

    Returns `pixel_values` (patches of all images, 3, rows, columns) and `image_grid_thw` (n, 3).
    """
    patch, rows, grids = settings["patch_size"], [], []
    for image in images:
        if settings["do_resize"]:
            height, width = _reduced_size(image, settings)
            factor = patch * settings["merge_size"]
            image = resized(image, height, width, settings)
            image = padded_below(image, height + -height % factor, width + -width % factor)
        values = np.asarray(rescaled(image, settings), np.float32)
        high, wide = (length // patch for length in values.shape[1:])
        blocks = values.reshape(3, high, patch, wide, patch).transpose(1, 3, 0, 2, 4)
        rows.append(blocks.reshape(high * wide, 3, patch, patch))
        grids.append([1, high, wide])
    return {"pixel_values": joined(rows), "image_grid_thw": np.array(grids, np.int64)}


def _reduced_size(image: Pixels, settings: Settings) -> tuple[int, int]:
    """Return the height and width within a number of patches in all, and on a side."""
    patch, longest = settings["patch_size"], settings["size"]["max_height"]
    sides = image.shape[:2]
    count = math.prod(max(1.0, side // patch) for side in sides)
    scale = min(
        1.0,
        math.sqrt(settings["max_patches"] / count),
        *(longest * patch / side for side in sides),
    )
    height, width = (min(max(1, int(side * scale)), longest * patch) for side in sides)
    return height, width
