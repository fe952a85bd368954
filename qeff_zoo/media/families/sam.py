# SPDX-License-Identifier: Apache-2.0
"""Image processor of Segment Anything; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, numbers, resize


def longest_edge(image: Pixels, edge: int) -> tuple[int, int]:
    """Return the height and width of an image resized to this length of its longer side; halves are rounded up."""
    height, width = image.shape[:2]
    scale = edge / max(height, width)
    return int(height * scale + 0.5), int(width * scale + 0.5)


def padded_squares(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """SAM: the longer side resized, padded with zeros at the lower and right edge to `pad_size`."""
    arrays = []
    for image in images:
        if settings["do_resize"]:
            sides = longest_edge(image, settings["size"]["longest_edge"])
            image = resize(image, *sides, settings["resample"])
        array = numbers(image, settings)
        if settings["do_pad"]:
            size = settings["pad_size"]["height"], settings["pad_size"]["width"]
            more = [(0, new - old) for new, old in zip(size, array.shape[1:], strict=True)]
            array = np.pad(array, [(0, 0), *more])
        arrays.append(array)
    return {"pixel_values": stacked(arrays)}
