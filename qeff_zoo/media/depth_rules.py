# SPDX-License-Identifier: Apache-2.0
"""Rules of image processors of depth models, whose sizes depend on the image; see `image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels, is_blank
from qeff_zoo.media.interpolation import resize_corners
from qeff_zoo.media.pixels import Settings, check_room, numbers, resize

_BILINEAR = 2


def whole_multiples(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DPT and Depth Anything: sides of whole multiples, perhaps in the image's aspect ratio, and centered on zeros.

    Returns `pixel_values` (n, 3, height, width); with `keep_aspect_ratio` or `do_pad` the size depends on the image.
    """
    divisor, arrays = settings.get("size_divisor"), []
    for image in images:
        if settings["do_resize"]:
            image = resize(image, *_in_multiples(image.shape, settings), settings["resample"])
        array = numbers(image, settings)
        if settings.get("do_pad") and divisor:
            missing = [-side % divisor for side in array.shape[1:]]
            array = np.pad(array, [(0, 0), *((more // 2, more - more // 2) for more in missing)])
        arrays.append(array)
    return {"pixel_values": stacked(arrays)}


def _in_multiples(shape: Sequence[int], settings: Settings) -> tuple[int, int]:
    """Return `size` in multiples of `ensure_multiple_of`; the aspect ratio is kept by the smaller change of a side."""
    multiple = settings["ensure_multiple_of"]
    scales = [
        settings["size"][name] / old for name, old in zip(("height", "width"), shape, strict=False)
    ]
    if settings["keep_aspect_ratio"]:
        down, right = scales
        scales = [right if abs(1 - right) < abs(1 - down) else down] * 2
    height, width = (
        int(round(scale * old / multiple) * multiple)
        for scale, old in zip(scales, shape, strict=False)
    )
    return height, width


def multiples_below(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """GLPN: sides rounded down to multiples of `size_divisor`; `pixel_values` (n, 3, height, width)."""
    divisor, arrays = settings["size_divisor"], []
    for image in images:
        if settings["do_resize"]:
            height, width = (side // divisor * divisor for side in image.shape[:2])
            image = resize(image, height, width, settings["resample"])
        arrays.append(numbers(image, settings))
    return {"pixel_values": stacked(arrays)}


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
        height, width = _in_multiples((height, width), settings)
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
