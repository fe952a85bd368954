# SPDX-License-Identifier: Apache-2.0
"""Image processor of DeepSeek OCR 2; see `qeff_zoo.media.image_rules`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, pad_to_square, resize


def smaller_tiles_and_whole(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """DeepSeek-OCR 2: the whole image in a square, and tiles of a large image, in another size.

    Returns `pixel_values` (n, 3, side, side); `num_local_patches` (n), the number of tiles of each image; and if any
    image has tiles `pixel_values_local` (tiles of all images, 3, tile_size, tile_size).
    """
    side, resample, cuts = settings["tile_size"], settings["resample"], settings["crop_to_patches"]
    whole_side = settings["size"]["height"] if cuts else side
    wholes, tiles, counts = [], list[NDArray[Any]](), []
    for image in images:
        parts: list[Pixels] = []
        if cuts and max(image.shape[:2]) > side:
            of_tiles = {**settings, "size": {"height": side, "width": side}}
            columns, rows = nearest_grid(image, of_tiles)
            parts = cut(resize(image, rows * side, columns * side, resample), side, side)
        tiles += [numbers(part, settings) for part in parts]
        counts.append(len(parts))
        scale = whole_side / max(image.shape[:2])
        height, width = (round(length * scale) for length in image.shape[:2])
        whole = resize(image, height, width, resample)
        wholes.append(numbers(pad_to_square(whole, settings["background_color"]), settings))
    return {
        "pixel_values": np.stack(wholes),
        "num_local_patches": np.array(counts),
        **({"pixel_values_local": np.stack(tiles)} if tiles else {}),
    }
