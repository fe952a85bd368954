# SPDX-License-Identifier: Apache-2.0
"""Image processor of ZoeDepth; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.media.depth_rules import in_multiples
from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels, is_blank
from qeff_zoo.media.interpolation import resize_corners
from qeff_zoo.media.pixels import Settings, check_room, numbers

_BILINEAR = 2


def reflected_multiples(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """ZoeDepth: a reflected border, then sides of whole multiples between the corners of the border.

    Returns `pixel_values` (n, 3, height, width); with `keep_aspect_ratio` the size depends on the image.

    Raises:
        UnsupportedModelError: An image is resized otherwise than bilinearly, or its values are not rescaled.
    """
    if settings["resample"] != _BILINEAR or not settings["do_rescale"]:
        raise UnsupportedModelError(
            f"ZoeDepth's images are resized with `resample` {settings['resample']} and `do_rescale` "
            f"{settings['do_rescale']}; expected {_BILINEAR} (bilinear) and true. Correct preprocessor_config.json."
        )
    return {"pixel_values": stacked([_reflected(image, settings) for image in images])}


def _reflected(image: Pixels, settings: Settings) -> NDArray[Any]:
    height, width = image.shape[:2]
    down, right = border(height, width, settings)
    height, width = height + 2 * down, width + 2 * right
    if settings["do_resize"]:
        height, width = in_multiples((height, width), settings)
        check_room(image, height, width)
    if is_blank(image):
        return np.broadcast_to(np.float32(0), (3, height, width))
    array = numbers(image, {**settings, "do_normalize": False})
    array = np.pad(array, [(0, 0), (down, down), (right, right)], mode="reflect")
    if settings["do_resize"]:
        array = resize_corners(array, height, width)
    if settings["do_normalize"]:
        mean, std = (np.asarray(settings[name], np.float32) for name in ("image_mean", "image_std"))
        array = (array - mean[:, None, None]) / std[:, None, None]
    return array


def border(height: int, width: int, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pixels of the reflected border above and below an image, and at its sides; 0 for none.

    Args:
        height: Height of the image.
        width: Width of the image.
        settings: Settings of an image processor; those with a border have `border_factor`.
    """
    factor = settings.get("border_factor") if settings.get("do_pad") else None
    if not factor:
        return 0, 0
    return int(math.sqrt(height / 2) * factor), int(math.sqrt(width / 2) * factor)
