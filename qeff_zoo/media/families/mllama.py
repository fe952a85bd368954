# SPDX-License-Identifier: Apache-2.0
"""Image processor of Llama 3.2 Vision; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.media.image_rules import Arrays, tile_side
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, resize


def tiles_of_canvases(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Llama 3.2 Vision: tiles of the best canvas, to which the image is padded at the bottom and right.

    Returns `pixel_values` (1, n, tiles, 3, side, side), zeros for missing tiles; `aspect_ratio_ids` (1, n), the
    number of the canvas; and `aspect_ratio_mask` (1, n, tiles), 1 for a tile.
    """
    side, most = tile_side(settings), settings["max_image_tiles"]
    sides = range(1, most + 1)
    canvases = [(high, wide) for high in sides for wide in sides if high * wide <= most]
    pixels = np.zeros((1, len(images), most, 3, side, side), np.float32)
    ids = np.zeros((1, len(images)), np.int64)
    mask = np.zeros((1, len(images), most), np.int64)
    for row, image in enumerate(images):
        number = _nearest_canvas(image, np.array(canvases) * side)
        high, wide = canvases[number]
        fitted = resize(
            image, *_fitting(image, side, high * side, wide * side), settings["resample"]
        )
        canvas = np.zeros((high * side, wide * side, 3), fitted.dtype)
        canvas[: fitted.shape[0], : fitted.shape[1]] = fitted
        tiles = (
            numbers(canvas, settings).reshape(3, high, side, wide, side).transpose(1, 3, 0, 2, 4)
        )
        tiles = tiles.reshape(-1, 3, side, side)
        pixels[0, row, : len(tiles)] = tiles
        ids[0, row] = number + 1
        mask[0, row, : len(tiles)] = 1
    return {"pixel_values": pixels, "aspect_ratio_ids": ids, "aspect_ratio_mask": mask}


def _nearest_canvas(image: Pixels, canvases: NDArray[Any]) -> int:
    """Choose the canvas that enlarges an image least, else the one that shrinks it least; ties go to the smallest."""
    scales = (canvases / image.shape[:2]).min(1)
    enlarging = scales[scales >= 1]
    chosen = np.flatnonzero(scales == (enlarging.min() if len(enlarging) else scales.max()))
    return int(chosen[np.argmin(canvases[chosen].prod(1))])


def _fitting(image: Pixels, side: int, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of the same aspect ratio that fit a canvas and fill a tile in one direction."""
    tall, broad = (
        int(np.clip(image.shape[0], side, height)),
        int(np.clip(image.shape[1], side, width)),
    )
    down, across = tall / image.shape[0], broad / image.shape[1]
    if across < down:
        return min(math.floor(image.shape[0] * across) or 1, tall), broad
    return tall, min(math.floor(image.shape[1] * down) or 1, broad)
