# SPDX-License-Identifier: Apache-2.0
"""Image processor of Pixtral; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import (
    Settings,
    crop_to_size,
    numbers,
    padded,
    resize,
)


def whole_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Pixtral: reduced to `size`, rounded up to whole patches, padded to the largest image.

    Returns `pixel_values` (n, 3, height, width) and `image_sizes` (n, 2), the height and width of each image.
    """
    size, patch = settings["size"], settings["patch_size"]
    limits = (
        (size["longest_edge"],) * 2 if "longest_edge" in size else (size["height"], size["width"])
    )
    arrays = []
    for image in images:
        if settings["do_resize"]:
            height, width = image.shape[:2]
            ratio = max(height / limits[0], width / limits[1])
            if ratio > 1:
                height, width = math.floor(height / ratio), math.floor(width / ratio)
            height = ((height - 1) // patch["height"] + 1) * patch["height"]
            width = ((width - 1) // patch["width"] + 1) * patch["width"]
            image = resize(image, height, width, settings["resample"])
        arrays.append(numbers(crop_to_size(image, settings), settings))
    sizes = np.array([array.shape[1:] for array in arrays])
    return {
        "pixel_values": stacked(padded(arrays) if settings.get("do_pad") else arrays),
        "image_sizes": sizes,
    }
