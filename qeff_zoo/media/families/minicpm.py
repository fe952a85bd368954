# SPDX-License-Identifier: Apache-2.0
"""Image processors of MiniCPM-V 4.6 and MiniCPM OCR; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.media.image_rules import Arrays, cut
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, resize, resize_across
from qeff_zoo.media.torchvision_rules import resized


def whole_and_slices(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """MiniCPM-V 4.6: the whole image, then with `slice_mode` slices of the best grid.

    Returns `pixel_values` (1, 3, rows of a patch, columns of all patches), patches concatenated in row-major order;
    `target_sizes` (tiles of all images, 2), rows and columns of patches in each; and `grids` (n, 2), of slices, 0
    without slices.
    """
    patch, resample = settings["patch_size"]["height"], settings["resample"]
    of_video = settings.get("of_video", False)
    at_once = of_video or settings.get("at_once", False)
    sized = settings.get("sized") or (resize_across if of_video else resize)
    lines, sizes, grids = [], [], []
    for image in images:
        whole_only = of_video and not settings["do_resize"]
        grid = _grid(image, settings) if settings["slice_mode"] and not whole_only else None
        whole = image
        if settings["do_resize"]:
            enlarge = grid is None and settings.get("small_image_upsize", "always") == "always"
            best = _size(image.shape[0], image.shape[1], settings, enlarge=enlarge)
            whole = sized(image, *best, resample)
        tiles = [whole]
        if grid is not None:
            fine = image
            if settings["do_resize"]:
                fine = sized(image, *_fine_size(image, grid, settings), resample)
            tiles += cut(fine, fine.shape[0] // grid[0], fine.shape[1] // grid[1])
        processed = [numbers(tile, settings, at_once=at_once) for tile in tiles]
        lines += [_side_by_side(tile, patch) for tile in processed]
        sizes += [[tile.shape[0] // patch, tile.shape[1] // patch] for tile in tiles]
        grids.append(grid or (0, 0))
    return {
        "pixel_values": np.concatenate(lines, axis=-1)[None],
        "target_sizes": np.array(sizes),
        "grids": np.array(grids),
    }


def whole_and_resized_slices(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """MiniCPM-OCR: `whole_and_slices`, bit for bit transformers' torchvision backend, the only one."""

    def sized(image: Pixels, height: int, width: int, _: int) -> Pixels:
        return resized(image, height, width, settings)

    if (small := settings["small_image_upsize"]) not in ("always", "never"):
        raise UnsupportedModelError(
            f"Images cannot be processed with `small_image_upsize` {small!r}, which measures the letters of a page. "
            "Expected 'always' or 'never'. Set one in preprocessor_config.json, or process images with transformers, "
            "and give the arrays."
        )
    return whole_and_slices(images, {**settings, "at_once": True, "sized": sized})


def frames_and_slices(frames: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Slice each frame of a video as an image, resized, rescaled and normalized as torchvision does.

    Returns `pixel_values` (frames, 3, rows of a patch, columns of all patches of one); and, shared by all frames,
    `target_sizes`, `grids` and `of_video`.
    """
    processed = [whole_and_slices([frame], {**settings, "of_video": True}) for frame in frames]
    pixels = np.concatenate([one["pixel_values"] for one in processed])
    return {**processed[0], "pixel_values": pixels, "of_video": np.array(1)}


def _multiple(length: float, unit: int) -> int:
    return max(round(length / unit) * unit, unit)


def _size(
    height: float, width: float, settings: Mapping[str, Any], *, enlarge: bool
) -> tuple[int, int]:
    """Return the height and width in whole merged patches, of at most `scale_resolution`² pixels, or of as many."""
    side = settings["scale_resolution"]
    if height * width > side * side or enlarge:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    merged = 2 if settings["downsample_mode"] == "4x" else 4
    unit = settings["patch_size"]["height"] * merged
    return _multiple(height, unit), _multiple(width, unit)


def _fine_size(
    image: Pixels, grid: tuple[int, int], settings: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the height and width of all slices together."""
    tall, wide = (_multiple(image.shape[axis], grid[axis]) / grid[axis] for axis in (0, 1))
    height, width = _size(tall, wide, settings, enlarge=True)
    return height * grid[0], width * grid[1]


def _grid(image: Pixels, settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Choose rows and columns of slices: about as many as the image's pixels fill, nearest to its aspect ratio."""
    height, width = image.shape[:2]
    most = settings["max_slice_nums"]
    count = min(math.ceil(width * height / settings["scale_resolution"] ** 2), most)
    if count <= 1:
        return None
    best, least = (1, 1), math.inf
    for number in (count - 1, count, count + 1):
        if number == 1 or number > most:
            continue
        for rows in range(1, number + 1):
            if number % rows == 0:
                grid = rows, number // rows
                error = abs(math.log(width / height) - math.log(grid[1] / grid[0]))
                if error < least or (error == least and rows > best[0]):
                    best, least = grid, error
    return best


def _side_by_side(tile: NDArray[Any], patch: int) -> NDArray[Any]:
    """Concatenate the patches of a tile (3, height, width) into one line, (3, rows of a patch, columns of all)."""
    high, wide = (size // patch for size in tile.shape[1:])
    blocks = tile.reshape(3, high, patch, wide, patch).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(3, patch, -1)
