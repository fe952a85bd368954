# SPDX-License-Identifier: Apache-2.0
"""Image processors for images of any size: patches and their positions. See `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, joined, numbers, resize


def smart_size(image: Pixels, factor: int, fewest: int, most: int) -> tuple[int, int]:
    """Return height and width, multiples of `factor`, of about the same aspect ratio and between two pixel counts."""
    height, width = image.shape[:2]
    if max(height, width) / min(height, width) > 200:
        raise MediaError(
            f"Cannot read an image of {width} x {height} pixels: one side is more than 200 times the other. Expected "
            "at most 200 times. Crop it."
        )
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > most:
        ratio = math.sqrt((height * width) / most)
        new_height = max(factor, math.floor(height / ratio / factor) * factor)
        new_width = max(factor, math.floor(width / ratio / factor) * factor)
    elif new_height * new_width < fewest:
        ratio = math.sqrt(fewest / (height * width))
        new_height = math.ceil(height * ratio / factor) * factor
        new_width = math.ceil(width * ratio / factor) * factor
    return new_height, new_width


def size_of_frames(
    image: Pixels, factor: int, fewest: int, most: int, frames: tuple[int, int] = (2, 1)
) -> tuple[int, int]:
    """`smart_size` for several frames: one is resized, and the pixels of all are limited.

    Args:
        image: A frame; an image counts as two.
        factor: Divisor of height and width.
        fewest: Minimum number of pixels in all frames.
        most: Maximum number of pixels in all frames.
        frames: Number of frames, and the multiple to which it is rounded for the pixel limits.
    """
    height, width = image.shape[:2]
    if (scale := max(factor / height, factor / width)) > 1:
        height, width = int(height * scale), int(width * scale)
    plain = smart_size(np.broadcast_to(image[:1, :1], (height, width, 3)), factor, 1, 1 << 62)
    count, deep = frames
    pixels = round(count / deep) * deep * plain[0] * plain[1]
    if pixels > most:
        ratio = math.sqrt(count * height * width / most)
        return tuple(
            max(factor, math.floor(side / ratio / factor) * factor) for side in (height, width)
        )
    if pixels < fewest:
        ratio = math.sqrt(fewest / (count * height * width))
        return tuple(math.ceil(side * ratio / factor) * factor for side in (height, width))
    return plain


def unit_of(settings: Settings) -> int:
    """Return the divisor of a frame's height and width in pixels."""
    unit: int = settings["patch_size"] * settings["merge_size"]
    return unit * int(settings.get("patch_expand_factor", 1))


def grid_of_frames(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """GLM-4V: the patches of Qwen2-VL, from images with another rule for their size."""
    size, factor = settings["size"], unit_of(settings)
    limits, deep = (size["shortest_edge"], size["longest_edge"]), settings["temporal_patch_size"]
    if settings["do_resize"]:
        images = [
            resize(
                image,
                *size_of_frames(image, factor, *limits, (deep, deep)),
                settings["resample"],
            )
            for image in images
        ]
    return grid_of_patches(images, {**settings, "do_resize": False})


def grid_of_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Qwen2-VL to Qwen3-VL: patches in merge order, each repeated for the frames of its temporal patch.

    Returns `pixel_values` (patches of all images, values of one) and `image_grid_thw` (n, 3): frames, rows and
    columns of each.
    """
    size, rows, grids = settings["size"], [], []
    for image in images:
        if settings["do_resize"]:
            factor = settings["patch_size"] * settings["merge_size"]
            wanted = smart_size(image, factor, size["shortest_edge"], size["longest_edge"])
            image = resize(image, *wanted, settings["resample"])
        array = np.asarray(numbers(image, settings), np.float32)
        patches, grid = patches_of_frames(array[None], settings)
        rows.append(patches)
        grids.append(grid)
    return {"pixel_values": joined(rows), "image_grid_thw": np.array(grids, np.int64)}


def patches_of_frames(
    frames: NDArray[np.float32], settings: Settings
) -> tuple[NDArray[np.float32], list[int]]:
    """Cut frames (n, 3, height, width) into patches of several frames each; the last frame is repeated as padding.

    Returns the patches in merge order, and temporal steps, rows and columns.
    """
    patch, merge, deep = (
        settings[name] for name in ("patch_size", "merge_size", "temporal_patch_size")
    )
    frames = joined([frames, *[frames[-1:]] * (-len(frames) % deep)])
    steps, high, wide = len(frames) // deep, frames.shape[2] // patch, frames.shape[3] // patch
    blocks = frames.reshape(
        steps, deep, 3, high // merge, merge, patch, wide // merge, merge, patch
    ).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    patches = blocks.reshape(steps * high * wide, 3 * deep * patch * patch)
    return patches, [steps, high, wide]


def filled_size(image: Pixels, unit: int, most: int) -> tuple[int, int]:
    """Return the height and width in whole units, of about the same aspect ratio, with as many pixels as allowed."""
    height, width = image.shape[:2]
    scale = math.sqrt(most / (height * width))
    tall, wide = (math.floor(scale * side / unit) for side in (height, width))
    longest = most // unit**2
    if not tall:
        tall, wide = 1, min(width // height, longest)
    elif not wide:
        tall, wide = min(height // width, longest), 1
    return tall * unit, wide * unit
