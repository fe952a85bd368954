# SPDX-License-Identifier: Apache-2.0
"""Image processor of Llama 4; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.image_rules import Arrays, cut
from qeff_zoo.media.images import Pixels, is_blank
from qeff_zoo.media.pixels import Settings
from qeff_zoo.media.torchvision_rules import padded_below, rescaled, resized


def _require_resizing(settings: Settings) -> None:
    if not settings["do_resize"]:
        raise CheckpointError(
            "Cannot process images: `do_resize` is false, and images of this model have certain sizes only. Expected "
            "true. Correct the processor's JSON."
        )


def tiles_of_canvases_and_whole(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Llama 4: tiles of the best canvas, row by row, then the whole image; one tile is the whole.

    Returns `pixel_values` (tiles of all images, 3, side, side), numbers of bfloat16; and `aspect_ratios` (n, 2), rows
    and columns of tiles.
    """
    _require_resizing(settings)
    side, arrays, ratios = settings["size"]["height"], [], []
    canvases = np.array(_canvases(settings["max_patches"])) * side
    enlarges = settings["resize_to_max_canvas"]
    for image in images:
        canvas = _best_canvas(image, canvases, enlarges=enlarges)
        inner = canvas
        if not enlarges:
            inner = tuple(
                min(max(old, side), new) for old, new in zip(image.shape[:2], canvas, strict=False)
            )
        height, width = (max(one, 1) for one in _within(image, *inner))
        fitted = padded_below(resized(image, height, width, settings), *canvas)
        parts = cut(fitted, side, side)
        if len(parts) > 1:
            parts.append(resized(image, side, side, settings))
        arrays += [_rounded_numbers(part, settings) for part in parts]
        ratios.append([one // side for one in canvas])
    return {"pixel_values": np.stack(arrays), "aspect_ratios": np.array(ratios)}


def _canvases(most: int) -> list[tuple[int, int]]:
    """Return rows and columns of all canvases; those of one aspect ratio follow one another."""
    alike: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for rows in (number for number in range(1, count + 1) if count % number == 0):
            columns = count // rows
            alike.setdefault(rows / columns, []).append((rows, columns))
    return [one for every in alike.values() for one in every]


def _best_canvas(image: Pixels, canvases: NDArray[Any], *, enlarges: bool) -> tuple[int, int]:
    """Choose the canvas that enlarges an image least, or most; else the one that reduces it least.

    Ties go to the smallest.
    """
    sides = canvases.astype(np.float32) / np.array(image.shape[:2], np.float32)
    scales = sides.min(1)
    enlarging = scales[scales >= 1]
    chosen = scales.max() if enlarges or not len(enlarging) else enlarging.min()
    indices = np.flatnonzero(scales == chosen)
    best = canvases[indices[np.argmin(canvases[indices].prod(1))]]
    return int(best[0]), int(best[1])


def _within(image: Pixels, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of the same aspect ratio that fit a size."""
    down, across = height / image.shape[0], width / image.shape[1]
    if across < down:
        return min(math.floor(image.shape[0] * across), height), width
    return height, min(math.floor(image.shape[1] * down), width)


def _rounded_numbers(image: Pixels, settings: Settings) -> NDArray[Any]:
    """Rescale and normalize with each result rounded to bfloat16: (3, height, width) of float32."""
    if not (settings["do_rescale"] and settings["do_normalize"]):
        return rescaled(image, settings)
    if is_blank(image):
        return np.broadcast_to(np.float32(0), (3, *image.shape[:2]))
    mean, std = (_bfloat16(np.asarray(settings[name])) for name in ("image_mean", "image_std"))
    values = _bfloat16(np.arange(256)) * np.float32(settings["rescale_factor"])
    table = _bfloat16(_bfloat16(_bfloat16(values)[:, None] - mean) / std).T  # (3, 256)
    return np.stack([table[color][image[..., color]] for color in range(3)])


def _bfloat16(values: NDArray[Any]) -> NDArray[np.float32]:
    """Round to the nearest number of bfloat16; of two as near, to the even one."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    shortened: NDArray[np.float32] = rounded.astype(np.uint32).view(np.float32)
    return shortened
