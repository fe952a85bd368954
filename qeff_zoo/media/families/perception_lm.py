# SPDX-License-Identifier: Apache-2.0
"""Image processor of Perception LM; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.media.image_rules import Arrays, cut, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.torchvision_rules import rescaled, resized


def whole_and_filled_tiles(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Perception LM: the whole image, then tiles of the best canvas, to which the image is stretched, row by row.

    Bit for bit transformers' torchvision backend, the only one. With `vision_input_type` other than "thumb+tile" the
    whole image alone.

    Returns `pixel_values` (n, tiles, 3, side, side). All images must have the same number of tiles.
    """
    side, tiles = settings["tile_size"], list[NDArray[Any]]()
    for image in images:
        parts = [resized(image, side, side, settings) if settings["do_resize"] else image]
        if settings["do_resize"] and settings["vision_input_type"] == "thumb+tile":
            wide, high = _filled_canvas(image, side, settings["max_num_tiles"])
            parts += cut(resized(image, high * side, wide * side, settings), side, side)
        tiles.append(np.stack([rescaled(part, settings) for part in parts]))
    return {"pixel_values": stacked(tiles)}


def _filled_canvas(image: Pixels, side: int, most: int) -> tuple[int, int]:
    """Choose columns and rows of tiles: the canvas on which the image becomes largest without being reduced.

    If every canvas reduces the image, the nearest aspect ratio is chosen, with the most tiles.
    """
    height, width = image.shape[:2]
    counts = [
        (columns, count // columns)
        for count in range(most, 0, -1)
        for columns in range(1, count + 1)
        if count % columns == 0
    ]
    shapes: dict[float, list[tuple[int, int]]] = {}
    for columns, rows in counts:
        shapes.setdefault(columns / rows, []).append((columns, rows))
    best, largest = None, 0.0
    for columns, rows in (one for alike in shapes.values() for one in alike):
        if columns * side >= width and rows * side >= height:
            short = _shorter_side(height, width, rows * side, columns * side)
            if short >= largest:
                best, largest = (columns, rows), short
    if best:
        return best
    ratio = width / height
    if ratio >= 1:
        nearest = min(
            (shape for shape in shapes if shape <= ratio), key=lambda one: abs(one - ratio)
        )
        return max(shapes[nearest])
    nearest = min(
        (shape for shape in shapes if shape > ratio), key=lambda one: abs(1 / one - 1 / ratio)
    )
    return max(shapes[nearest], key=lambda one: one[1])


def _shorter_side(height: int, width: int, tall: int, broad: int) -> float:
    """Return the length in pixels of the shorter side of an image that was enlarged to fit."""
    scale, shape = min(broad / width, tall / height), width / height
    if shape == 1:
        return scale * height
    return math.floor(scale * width / shape if shape > 1 else scale * height * shape)
