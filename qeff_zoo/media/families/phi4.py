# SPDX-License-Identifier: Apache-2.0
"""Image processor of Phi-4 multimodal; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError, MediaError
from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid, tile_side
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.interpolation import resize_bytes, resize_numbers
from qeff_zoo.media.torchvision_rules import rescaled

_BICUBIC = 3  # Pillow's number


_LEAST = 10  # minimum pixels on a side of an image for Phi-4 multimodal


def whole_and_padded_tiles(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Phi-4 multimodal: the whole image, then the tiles of a canvas, padded with white at the bottom or right.

    Bit for bit transformers' torchvision backend, the only one, except for the whole image, which is interpolated in
    float32.

    Returns `image_pixel_values` (n, tiles, 3, side, side), zeros beyond an image's tiles, `image_sizes` (n, 2) of the
    canvas, and `image_attention_mask` (n, tiles, rows, columns), 1 for a patch with image content.

    Raises:
        CheckpointError: The whole image is resized otherwise than bicubically.
    """
    if settings["resample"] != _BICUBIC:
        raise CheckpointError(
            f"Cannot resize images: `resample` is {settings['resample']!r}. Expected {_BICUBIC}, bicubic. Correct the "
            "processor's JSON."
        )
    side, patch = tile_side(settings), settings["patch_size"]["height"]
    parts, masks, sizes = [], [], []
    for image in images:
        canvas, mask = _white_canvas(image, side, patch, settings)
        values = np.asarray(rescaled(canvas, settings))
        tiles = cut(values.transpose(1, 2, 0), side, side)
        parts.append(
            [resize_numbers(values, side, side), *(tile.transpose(2, 0, 1) for tile in tiles)]
        )
        unit = side // patch
        masks.append([np.ones((unit, unit), np.int64), *cut(mask, unit, unit)])
        sizes.append(canvas.shape[:2])
    pixels = np.zeros((len(images), max(map(len, parts)), 3, side, side), np.float32)
    there = np.ones((*pixels.shape[:2], side // patch, side // patch), np.int64)
    for number, (tiles, known) in enumerate(zip(parts, masks, strict=True)):
        pixels[number, : len(tiles)] = tiles
        there[number, : len(known)] = known
    return {
        "image_pixel_values": pixels,
        "image_sizes": np.array(sizes),
        "image_attention_mask": there,
    }


def _white_canvas(
    image: Pixels, side: int, patch: int, settings: Mapping[str, Any]
) -> tuple[Pixels, NDArray[np.int64]]:
    """Return an image on a canvas of whole tiles, and a mask with 1 for each patch with image content."""
    height, width = image.shape[:2]
    wide, high = (math.ceil(length / side) for length in (width, height))
    if wide * high > (most := settings["dynamic_hd"]):
        wide, high = nearest_grid(image, {**settings, "min_patches": 1, "max_patches": most})
    tall, broad = high * side, wide * side
    across, down = broad / width, tall / height
    inner = (int(height * across), broad) if across < down else (tall, int(width * down))
    if min(inner) < _LEAST:
        raise MediaError(
            f"Cannot read an image of {width} x {height} pixels: it would become one of {inner[1]} x {inner[0]}. "
            f"Expected {_LEAST} pixels on each side at least. Crop it: it is too narrow for this model."
        )
    canvas = np.full((tall, broad, 3), 255, np.uint8)
    canvas[: inner[0], : inner[1]] = resize_bytes(image, *inner)
    mask = np.ones((tall // patch, broad // patch), np.int64)
    below, beside = (
        (whole - part) // patch for whole, part in zip((tall, broad), inner, strict=True)
    )
    mask[len(mask) - below :] = 0
    mask[:, mask.shape[1] - beside :] = 0
    return canvas, mask
