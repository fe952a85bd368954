# SPDX-License-Identifier: Apache-2.0
"""Image processor of ViTPose; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, numbers

#: Left and upper edge, width and height in pixels of an image.
Box: TypeAlias = tuple[float, float, float, float]


#: Unit of the scale of a box, and factor of its margins.
_UNIT, _MARGIN = 200.0, 1.25


_LEAST = 4  # transformers takes lower images for images whose colors come last


def people(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """ViTPose: a part of an image for each box, of its aspect ratio and margins; black beyond the image.

    The setting `boxes` has the boxes of each image; without it, the box of an image is the whole of it.

    Returns `pixel_values` (boxes of all images, 3, height, width).
    """
    arrays = []
    for number, image in enumerate(images):
        for box in _boxes(image, number, settings):
            part = _cut(image, box, settings) if settings["do_affine_transform"] else image
            arrays.append(numbers(part, settings))
    return {"pixel_values": stacked(arrays)}


def _boxes(image: Pixels, number: int, settings: Settings) -> Sequence[Box]:
    if given := settings.get("boxes"):
        boxes: Sequence[Box] = given[number]
        return boxes
    return [(0, 0, image.shape[1], image.shape[0])]


def center_and_scale(
    box: Box, height: int, width: int, unit: float = _UNIT
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the center of a box, and its size with margins in units, both float32, x before y.

    Args:
        box: Box of a person.
        height: Height of processed images.
        width: Width of processed images.
        unit: Number of pixels of a unit.
    """
    left, top, wide, tall = box
    center = np.array([left + wide * 0.5, top + tall * 0.5], np.float32)
    ratio = width / height
    if wide > ratio * tall:
        tall = wide / ratio
    elif wide < ratio * tall:
        wide = tall * ratio
    return center, np.array([wide / unit, tall / unit], np.float32) * np.float32(_MARGIN)


def _cut(image: Pixels, box: Box, settings: Settings) -> Pixels:
    """Return the part of an image around a box, interpolated linearly; black where it is beyond the image."""
    if image.shape[0] < _LEAST:
        raise MediaError(
            f"An image has {image.shape[0]} rows of pixels; expected at least {_LEAST}. Enlarge it."
        )
    height, width = settings["size"]["height"], settings["size"]["width"]
    center, scale = center_and_scale(box, height, width, settings["normalize_factor"])
    extent = scale * np.float32(_UNIT)
    forward = np.eye(3)
    for axis, side in enumerate((width, height)):
        factor = (side - 1.0) / np.float64(extent[axis])
        shift = np.float32(-0.5) * (center[axis] * np.float32(2)) + np.float32(0.5) * extent[axis]
        forward[axis, axis] = np.float32(factor)
        forward[axis, 2] = np.float32(factor * shift)
    back = np.linalg.inv(forward)
    columns, across = _places(back[0, 0], back[0, 2], width, image.shape[1])
    rows, down = _places(back[1, 1], back[1, 2], height, image.shape[0])
    total = np.zeros((height, width, 3))
    for row, tall in ((0, 1.0 - down), (1, down)):
        line = image[np.clip(rows + row, 0, image.shape[0] - 1)]
        for column, wide in ((0, 1.0 - across), (1, across)):
            values = line[:, np.clip(columns + column, 0, image.shape[1] - 1)].astype(np.float64)
            total += values * tall[:, None, None] * wide[None, :, None]
    outside = (rows < 0)[:, None] | (columns < 0)[None, :]
    total[outside] = 0
    return np.minimum(np.floor(total + 0.5), 255).astype(np.uint8)


def _places(step: float, shift: float, count: int, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the pixel before each point of an axis, -1 for positions outside the image, and the share of the next."""
    positions = np.arange(count) * step + shift
    before = np.floor(positions)
    inside = (positions >= 0) & (positions <= size - 1)
    return np.where(inside, before, -1).astype(np.int64), positions - before
