# SPDX-License-Identifier: Apache-2.0
"""Image processors of GOT-OCR 2 and InternVL; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid, stacked, uncropped
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, numbers, resize


def tiles_of_one_canvas(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """GOT-OCR2, InternVL and Aya Vision: with `crop_to_patches`, the tiles of the nearest grid, then the whole image.

    Returns `pixel_values` (tiles of all images, 3, height, width) and `num_patches` (n).
    """
    size, resample = settings["size"], settings["resample"]
    arrays, counts = [], []
    for image in images:
        if not (settings["crop_to_patches"] and settings["max_patches"] > 1):
            arrays.append(uncropped(image, settings))
            counts.append(1)
            continue
        wide, high = nearest_grid(image, settings)
        canvas = resize(image, high * size["height"], wide * size["width"], resample)
        parts = cut(canvas, size["height"], size["width"])
        if len(parts) > 1:
            parts.append(resize(image, size["height"], size["width"], resample))
        arrays += [numbers(part, settings) for part in parts]
        counts.append(len(parts))
    return {"pixel_values": stacked(arrays), "num_patches": np.array(counts)}
