# SPDX-License-Identifier: Apache-2.0
"""Operations on pixels with the results of transformers' PIL backend, bit for bit, without torch.

Images stay uint8, (height, width, 3), until their size is final; `numbers` then converts them to float32, (3, height,
width). A pixel has 256 values, so rescaling and normalizing read a table of 256 entries for each color.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.images import LIMITS, Pixels, blank, is_blank

Settings = Mapping[str, Any]

_LARGE = 1 << 20  # pixels of an image that is narrowed in strips
_STRIP = (
    1 << 19
)  # pixels narrowed at a time; Pillow computes a filter's weights anew for each strip


def resize(
    image: Pixels, height: int, width: int, resample: int, reducing_gap: float | None = None
) -> Pixels:
    """Resize by one of Pillow's filters; `reducing_gap` is Pillow's option of the same name.

    A large image is narrowed in strips, since Pillow copies its input and holds Python's lock meanwhile.

    Raises:
        MediaError: If the result would have no pixels, or too many: the image is too narrow for its processor.
    """
    check_room(image, height, width)
    if is_blank(image):
        return blank(height, width)
    rows, columns = image.shape[:2]
    # Pillow resizes in one direction, rounds, and resizes in the other; version 13 begins with columns in other cases.
    horizontal_first = columns - width >= max(1, (rows - height) / 2)
    if rows * columns > _LARGE and horizontal_first and reducing_gap is None:
        narrow = np.empty((rows, width, *image.shape[2:]), image.dtype)
        lines = max(1, _STRIP // columns)
        for top in range(0, rows, lines):
            strip = image[top : top + lines]
            narrow[top : top + lines] = _resized(strip, len(strip), width, resample)
        image = narrow
    return _resized(image, height, width, resample, reducing_gap)


def _resized(
    image: Pixels, height: int, width: int, resample: int, reducing_gap: float | None = None
) -> Pixels:
    from PIL import Image

    return np.asarray(
        Image.fromarray(np.ascontiguousarray(image)).resize(
            (width, height), Image.Resampling(resample), reducing_gap=reducing_gap
        )
    )


def check_room(image: Pixels, height: int, width: int) -> None:
    """Check the pixel count of a resized image.

    Raises:
        MediaError: If it would have no pixels, or too many.
    """
    if min(height, width) < 1 or height * width > LIMITS.pixels:
        raise MediaError(
            f"Cannot resize an image of {image.shape[1]} x {image.shape[0]} pixels to {width} x {height}. Expected "
            f"between 1 and {LIMITS.pixels:,} pixels. Crop it: it is too narrow for this model."
        )


def resize_across(image: Pixels, height: int, width: int, resample: int) -> Pixels:
    """Resize horizontally, then vertically, rounding between, as torchvision does; Pillow alone chooses the order."""
    return resize(resize(image, image.shape[0], width, resample), height, width, resample)


def shortest_edge(image: Pixels, edge: int) -> tuple[int, int]:
    """Return the height and width of an image resized to this length of its shorter side."""
    height, width = image.shape[:2]
    short, long = min(height, width), max(height, width)
    other = int(edge * long / short)
    return (other, edge) if width <= height else (edge, other)


def between_edges(image: Pixels, shortest: int, longest: int) -> tuple[int, int]:
    """Return the height and width with this length of the shorter side, or less at the limit of the longer side."""
    height, width = image.shape[:2]
    short, long = float(min(height, width)), float(max(height, width))
    exact: float = shortest
    if long / short * shortest > longest:
        exact = longest * short / long
    edge = round(exact)
    if edge == min(height, width):
        return height, width
    if width < height:
        return int(exact * height / width), edge
    return edge, int(exact * width / height)


def sides_of_size(image: Pixels, settings: Settings) -> tuple[int, int]:
    """Return the height and width of an image resized to `size`, in any of its forms."""
    size: Mapping[str, int] = settings["size"]
    if "shortest_edge" in size and "longest_edge" in size:
        height, width = between_edges(image, size["shortest_edge"], size["longest_edge"])
    elif "shortest_edge" in size:
        height, width = shortest_edge(image, size["shortest_edge"])
    elif "max_height" in size:
        scale = min(size["max_height"] / image.shape[0], size["max_width"] / image.shape[1])
        height, width = int(image.shape[0] * scale), int(image.shape[1] * scale)
    else:
        height, width = size["height"], size["width"]
    return height, width


def resize_to_size(image: Pixels, settings: Settings) -> Pixels:
    """Resize to `size`, in any of its forms."""
    return resize(image, *sides_of_size(image, settings), settings["resample"])


def center_crop(image: Pixels, height: int, width: int) -> Pixels:
    """Crop the center; black pads an image that is smaller."""
    old_height, old_width = image.shape[:2]
    tall, wide = max(height, old_height), max(width, old_width)
    if (tall, wide) != (old_height, old_width):
        canvas = np.zeros((tall, wide, 3), image.dtype)
        down, right = ceil((tall - old_height) / 2), ceil((wide - old_width) / 2)
        canvas[down : down + old_height, right : right + old_width] = image
        # A side without padding is cropped at the same position as without the canvas.
        top, left = (old_height - height) // 2 + down, (old_width - width) // 2 + right
        return canvas[max(top, 0) : top + height, max(left, 0) : left + width]
    top, left = (tall - height) // 2, (wide - width) // 2
    return image[top : top + height, left : left + width]


def crop_to_size(image: Pixels, settings: Settings) -> Pixels:
    """Crop to `crop_size`, if enabled."""
    if not settings.get("do_center_crop"):
        return image
    return center_crop(image, settings["crop_size"]["height"], settings["crop_size"]["width"])


def pad_to_square(image: Pixels, color: Sequence[int]) -> Pixels:
    """Center an image on a square of a color.

    Raises:
        MediaError: If the square would have too many pixels: the image is too narrow.
    """
    height, width = image.shape[:2]
    side = max(height, width)
    check_room(image, side, side)
    if is_blank(image):
        return blank(side, side)
    square = np.empty((side, side, 3), image.dtype)
    square[:] = color
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = image
    return square


def numbers(image: Pixels, settings: Settings, *, at_once: bool = False) -> NDArray[Any]:
    """Rescale and normalize: (height, width, 3) in, (3, height, width) out, float32 unless both are disabled.

    Args:
        image: An image of its final size.
        settings: Settings of the processor.
        at_once: Whether both are one step, as in transformers' torchvision backend, which rounds differently.
    """
    if not settings["do_rescale"] and not settings["do_normalize"]:
        return np.ascontiguousarray(image.transpose(2, 0, 1))
    values = np.arange(256, dtype=np.float64)
    at_once = at_once and settings["do_rescale"] and settings["do_normalize"]
    if settings["do_rescale"] and not at_once:
        values = values * settings["rescale_factor"]
    table = np.repeat(values.astype(np.float32)[None], 3, axis=0)
    if settings["do_normalize"]:
        mean, std = (np.asarray(settings[name], np.float32) for name in ("image_mean", "image_std"))
        if at_once:
            mean, std = (
                number * np.float32(1 / settings["rescale_factor"]) for number in (mean, std)
            )
        table = (table - mean.reshape(-1, 1)) / std.reshape(-1, 1)
    if is_blank(image):
        return np.broadcast_to(np.float32(0), (3, *image.shape[:2]))
    out = np.empty((3, *image.shape[:2]), np.float32)
    for color in range(3):
        np.take(table[color], image[:, :, color], out=out[color], mode="clip")  # unbuffered
    return out


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays along their first axis; arrays of blank images stay without memory."""
    if all(map(is_blank, arrays)):
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
        return np.broadcast_to(arrays[0].dtype.type(0), shape)
    return np.concatenate(arrays)


def padded(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Pad arrays of (…, height, width) with zeros, at the bottom and right, to the largest height and width."""
    height, width = (max(array.shape[axis] for array in arrays) for axis in (-2, -1))
    return [
        np.pad(
            array,
            [(0, 0)] * (array.ndim - 2)
            + [(0, height - array.shape[-2]), (0, width - array.shape[-1])],
        )
        for array in arrays
    ]
