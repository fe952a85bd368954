# SPDX-License-Identifier: Apache-2.0
"""Image processor of Step 3.7; see `qeff_zoo.media.image_rules`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.media.image_rules import Arrays, cut
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import check_room
from qeff_zoo.media.torchvision_rules import rescaled, resized

_THIN = 32  # pixels on a side, below which Step 3.7 pads a long image to a square


def parts_and_whole(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Step 3.7: the whole image in a square, and parts of a large or long image, in another size.

    Bit for bit transformers' torchvision backend, the only one.

    Returns `pixel_values` (n, 3, side, side); `num_local_patches` (n), the number of parts of each image; `grids` (n,
    2), rows and columns of the parts; and if any image has parts `pixel_values_local` (parts of all images, 3,
    patch_size, patch_size).
    """
    side, small = settings["size"]["height"], settings["patch_size"]["height"]
    wholes, parts, grids = [], list[NDArray[Any]](), []
    for image in images:
        height, width = image.shape[:2]
        if min(height, width) < _THIN and max(height, width) > 4 * min(height, width):
            check_room(image, *(max(height, width),) * 2)
            square = np.zeros((max(height, width),) * 2 + (3,), np.uint8)
            square[:height, :width] = image
            image = square
        tall, broad, window = _planned(image, side, small, settings["max_image_size"])
        wholes.append(resized(resized(image, tall, broad, settings), side, side, settings))
        cuts: list[Pixels] = []
        high, wide = tall, broad
        if window:
            high, wide = (_in_windows(length, window) for length in (tall, broad))
            cuts = cut(resized(image, high, wide, settings), window, window)
        parts += [rescaled(resized(one, small, small, settings), settings) for one in cuts]
        grids.append([max(1, length // window) if window else 0 for length in (high, wide)])
    return {
        "pixel_values": np.stack([rescaled(one, settings) for one in wholes]),
        "num_local_patches": np.prod(grids, axis=1),
        "grids": np.array(grids),
        **({"pixel_values_local": np.stack(parts)} if parts else {}),
    }


def _planned(image: Pixels, side: int, small: int, most: int) -> tuple[int, int, int]:
    """Return the height and width of the whole image, and the side of a part in pixels; 0 without parts."""
    height, width = image.shape[:2]
    if max(height, width) > most:
        scale = most / max(height, width)
        height, width = int(height * scale), int(width * scale)
    short, long = sorted((height, width))
    if long <= side:
        return height, width, short if long / short > 1.5 else 0
    return height, width, min(short, small) if long / short > 4 else small


def _in_windows(length: int, window: int) -> int:
    """Return a length in whole windows, rounded up if over a fifth of one is left; a shorter length is unchanged."""
    if length < window:
        return length
    return window * (length // window + (length % window > 0.2 * window))
