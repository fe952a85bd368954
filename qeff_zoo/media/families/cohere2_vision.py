# SPDX-License-Identifier: Apache-2.0
"""Image processor of Command A Vision; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, cut
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings
from qeff_zoo.media.torchvision_rules import rescaled, resized


def tiles_of_fitting_grids(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Command A Vision: tiles of the grid to which an image is enlarged least, row by row, then the whole image.

    Returns `pixel_values` (tiles of all images, 3, height, width) and `num_patches` (n).
    """
    high, wide = (settings["size"][name] for name in ("height", "width"))
    arrays, counts = [], []
    for image in images:
        if not settings["crop_to_patches"] and not settings["do_resize"]:
            parts = [image]
        else:
            rows, columns = _fitting_grid(image, high, settings)
            parts = cut(resized(image, rows * high, columns * wide, settings), high, wide)
        if len(parts) > 1:
            parts.append(resized(image, high, wide, settings))
        arrays += [rescaled(part, settings) for part in parts]
        counts.append(len(parts))
    return {"pixel_values": np.stack(arrays), "num_patches": np.array(counts)}


def _fitting_grid(image: Pixels, side: int, settings: Settings) -> tuple[int, int]:
    """Choose rows and columns of tiles: the least enlargement, else the least reduction; ties go to the fewest."""
    sides = range(1, (settings["max_patches"] if settings["crop_to_patches"] else 1) + 1)
    grids = [(wide, high) for wide in sides for high in sides if wide * high <= sides[-1]]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = (np.array(grids) * side / np.array(image.shape[1::-1])).min(1)
    enlarging = np.where(scales < 1, np.inf, scales)
    columns, rows = grids[scales.argmax() if (scales < 1).all() else enlarging.argmin()]
    return rows, columns
