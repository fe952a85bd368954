# SPDX-License-Identifier: Apache-2.0
"""Image processor of Ovis 2; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, resize


def whole_and_covering_tiles(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Ovis 2: the whole image, then with `crop_to_patches` tiles of the smallest grid that covers nearly all of it.

    Returns `pixel_values` (tiles of all images, 3, height, width) and `grids` (n, 2), rows and columns of tiles.
    """
    high, wide = (settings["size"][name] for name in ("height", "width"))
    resample = settings["resample"]
    arrays, grids = [], []
    for image in images:
        columns, rows = 1, 1
        if settings["crop_to_patches"] and settings["max_patches"] > 1:
            covering = settings["use_covering_area_grid"]
            columns, rows = (_covering_grid if covering else nearest_grid)(image, settings)
        parts = [resize(image, high, wide, resample)]
        if rows * columns > 1:
            parts += cut(resize(image, rows * high, columns * wide, resample), high, wide)
        arrays += [numbers(part, settings) for part in parts]
        grids.append([rows, columns])
    return {"pixel_values": np.stack(arrays), "grids": np.array(grids)}


def _covering_grid(image: Pixels, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Choose columns and rows: the fewest tiles that cover 90% of an image's area, else the largest coverage.

    As in transformers, coverage is measured with rows and columns of the grid swapped.
    """
    side, sides = settings["size"]["height"], range(1, settings["max_patches"] + 1)
    grids = [(length, other) for length in sides for other in sides if length * other <= sides[-1]]
    kept = {grid: _kept(image, grid, side) for grid in grids}
    enough = [grid for grid in grids if kept[grid] > 0.9]
    if enough:
        return min(enough, key=lambda grid: (math.prod(grid), -kept[grid]))
    return min(grids, key=lambda grid: (-kept[grid], math.prod(grid)))


def _kept(image: Pixels, grid: tuple[int, int], side: int) -> float:
    """Return the share of an image's area that is left after each part is reduced to fit a square."""
    height, width = image.shape[:2]
    tall, broad = height // grid[0], width // grid[1]
    area = 0.0
    for row in range(grid[0]):
        for column in range(grid[1]):
            down = height - row * tall if row == grid[0] - 1 else tall
            across = width - column * broad if column == grid[1] - 1 else broad
            long, short = max(down, across), float(min(down, across))
            if long > side:
                long, short = side, short / long * side
            area += long * short
    return float(area / (width * height))
