# SPDX-License-Identifier: Apache-2.0
"""What MiniCPM-V's processor makes of pictures: each as a whole, then slices of it in more detail."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.media.image_rules import Arrays, cut
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, resize


def whole_and_slices(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """MiniCPM-V 4.6: the whole picture, then with `slice_mode` slices of the grid that suits it.

    Returns `pixel_values` (1, 3, rows of a patch, columns of all patches), side by side line by line; `target_sizes`
    (tiles of all pictures, 2), rows and columns of patches of each; and `grids` (n, 2), of slices, 0 without any.
    """
    patch, resample = settings["patch_size"]["height"], settings["resample"]
    lines, sizes, grids = [], [], []
    for image in images:
        grid = _grid(image, settings) if settings["slice_mode"] else None
        whole = image
        if settings["do_resize"]:
            best = _size(image.shape[0], image.shape[1], settings, enlarge=grid is None)
            whole = resize(image, *best, resample)
        tiles = [whole]
        if grid is not None:
            fine = image
            if settings["do_resize"]:
                fine = resize(image, *_fine_size(image, grid, settings), resample)
            tiles += cut(fine, fine.shape[0] // grid[0], fine.shape[1] // grid[1])
        lines += [_side_by_side(numbers(tile, settings), patch) for tile in tiles]
        sizes += [[tile.shape[0] // patch, tile.shape[1] // patch] for tile in tiles]
        grids.append(grid or (0, 0))
    return {
        "pixel_values": np.concatenate(lines, axis=-1)[None],
        "target_sizes": np.array(sizes),
        "grids": np.array(grids),
    }


def _multiple(length: float, unit: int) -> int:
    return max(round(length / unit) * unit, unit)


def _size(
    height: float, width: float, settings: Mapping[str, Any], *, enlarge: bool
) -> tuple[int, int]:
    """Return the height and width in whole squares of patches, of at most so many pixels, or of as many."""
    side = settings["scale_resolution"]
    if height * width > side * side or enlarge:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    merged = 2 if settings["downsample_mode"] == "4x" else 4
    unit = settings["patch_size"]["height"] * merged
    return _multiple(height, unit), _multiple(width, unit)


def _fine_size(
    image: Pixels, grid: tuple[int, int], settings: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the height and width of all slices together."""
    tall, wide = (_multiple(image.shape[axis], grid[axis]) / grid[axis] for axis in (0, 1))
    height, width = _size(tall, wide, settings, enlarge=True)
    return height * grid[0], width * grid[1]


def _grid(image: Pixels, settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Choose rows and columns of slices, of nearly as many as a picture has room for, and nearest to its shape."""
    height, width = image.shape[:2]
    most = settings["max_slice_nums"]
    count = min(math.ceil(width * height / settings["scale_resolution"] ** 2), most)
    if count <= 1:
        return None
    best, least = (1, 1), math.inf
    for number in (count - 1, count, count + 1):
        if number == 1 or number > most:
            continue
        for rows in range(1, number + 1):
            if number % rows == 0:
                grid = rows, number // rows
                error = abs(math.log(width / height) - math.log(grid[1] / grid[0]))
                if error < least or (error == least and rows > best[0]):
                    best, least = grid, error
    return best


def _side_by_side(tile: NDArray[Any], patch: int) -> NDArray[Any]:
    """Put the patches of a tile (3, height, width) into one line, (3, rows of a patch, columns of all)."""
    high, wide = (size // patch for size in tile.shape[1:])
    blocks = tile.reshape(3, high, patch, wide, patch).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(3, patch, -1)
