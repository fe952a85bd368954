# SPDX-License-Identifier: Apache-2.0
"""What processors make of pictures that choose a canvas for each: Llama 3.2 Vision's, Ovis 2's and Molmo 2's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import interpolated, numbers, resize

_BILINEAR = 2  # as Pillow numbers its filters


def tiles_of_canvases(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Llama 3.2 Vision: tiles of the canvas that suits a picture, which is padded to it below and to the right.

    Returns `pixel_values` (1, n, tiles, 3, side, side), zeros where there are fewer; `aspect_ratio_ids` (1, n), the
    number of the canvas; and `aspect_ratio_mask` (1, n, tiles), 1 for a tile.
    """
    side, most = settings["size"].get("height"), settings["max_image_tiles"]
    if not side or side != settings["size"].get("width"):
        raise CheckpointError(
            f"Cannot cut pictures into tiles: `size` is {settings['size']!r}. Expected a height and a width that are "
            "equal. Correct the processor's JSON."
        )
    sides = range(1, most + 1)
    canvases = [(high, wide) for high in sides for wide in sides if high * wide <= most]
    pixels = np.zeros((1, len(images), most, 3, side, side), np.float32)
    ids = np.zeros((1, len(images)), np.int64)
    mask = np.zeros((1, len(images), most), np.int64)
    for place, image in enumerate(images):
        number = _nearest_canvas(image, np.array(canvases) * side)
        high, wide = canvases[number]
        fitted = resize(
            image, *_fitting(image, side, high * side, wide * side), settings["resample"]
        )
        canvas = np.zeros((high * side, wide * side, 3), fitted.dtype)
        canvas[: fitted.shape[0], : fitted.shape[1]] = fitted
        tiles = (
            numbers(canvas, settings).reshape(3, high, side, wide, side).transpose(1, 3, 0, 2, 4)
        )
        tiles = tiles.reshape(-1, 3, side, side)
        pixels[0, place, : len(tiles)] = tiles
        ids[0, place] = number + 1
        mask[0, place, : len(tiles)] = 1
    return {"pixel_values": pixels, "aspect_ratio_ids": ids, "aspect_ratio_mask": mask}


def _nearest_canvas(image: Pixels, canvases: NDArray[Any]) -> int:
    """Choose the canvas that enlarges a picture least, else shrinks it least, and of those the smallest."""
    scales = (canvases / image.shape[:2]).min(1)
    enlarging = scales[scales >= 1]
    chosen = np.flatnonzero(scales == (enlarging.min() if len(enlarging) else scales.max()))
    return int(chosen[np.argmin(canvases[chosen].prod(1))])


def _fitting(image: Pixels, side: int, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of the same shape, within a canvas and at least as large as a tile in one of them."""
    tall, broad = (
        int(np.clip(image.shape[0], side, height)),
        int(np.clip(image.shape[1], side, width)),
    )
    down, across = tall / image.shape[0], broad / image.shape[1]
    if across < down:
        return min(math.floor(image.shape[0] * across) or 1, tall), broad
    return tall, min(math.floor(image.shape[1] * down) or 1, broad)


def whole_and_covering_tiles(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Ovis 2: the whole picture, then with `crop_to_patches` tiles of the smallest grid that keeps nearly all.

    Returns `pixel_values` (tiles of all pictures, 3, height, width) and `grids` (n, 2), rows and columns of tiles.
    """
    high, wide = (settings["size"][name] for name in ("height", "width"))
    resample = settings["resample"]
    arrays, grids = [], []
    for image in images:
        columns, rows = 1, 1
        if settings["crop_to_patches"] and settings["max_patches"] > 1:
            covering = settings["use_covering_area_grid"]
            columns, rows = (_covering_grid if covering else nearest_grid)(image, settings)
        parts = [resize(image, high, wide, resample)]
        if rows * columns > 1:
            parts += cut(resize(image, rows * high, columns * wide, resample), high, wide)
        arrays += [numbers(part, settings) for part in parts]
        grids.append([rows, columns])
    return {"pixel_values": np.stack(arrays), "grids": np.array(grids)}


def _covering_grid(image: Pixels, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Choose columns and rows: the fewest tiles that keep nine tenths of a picture's area, else as much as can be.

    As in transformers, what is measured of a grid are parts of a picture with rows and columns in each other's place.
    """
    side, sides = settings["size"]["height"], range(1, settings["max_patches"] + 1)
    grids = [(one, other) for one in sides for other in sides if one * other <= sides[-1]]
    kept = {grid: _kept(image, grid, side) for grid in grids}
    enough = [grid for grid in grids if kept[grid] > 0.9]
    if enough:
        return min(enough, key=lambda grid: (math.prod(grid), -kept[grid]))
    return min(grids, key=lambda grid: (-kept[grid], math.prod(grid)))


def _kept(image: Pixels, grid: tuple[int, int], side: int) -> float:
    """Return the share of a picture that is kept where each part becomes no larger than a square."""
    height, width = image.shape[:2]
    tall, broad = height // grid[0], width // grid[1]
    area = 0.0
    for row in range(grid[0]):
        for column in range(grid[1]):
            down = height - row * tall if row == grid[0] - 1 else tall
            across = width - column * broad if column == grid[1] - 1 else broad
            long, short = max(down, across), float(min(down, across))
            if long > side:
                long, short = side, short / long * side
            area += long * short
    return float(area / (width * height))


def whole_and_overlapping_crops(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Molmo 2: the whole picture, then crops of a canvas that overlap; rows are made of squares of their patches.

    Returns `pixel_values` (crops of all pictures, patches, values); `image_token_pooling` (rows, patches of one), which
    are counted over all crops, -1 for none; `image_grids` (n, 4), in rows: rows and columns of the whole, and of the
    canvas; and `image_num_crops` (n).
    """
    side, patch = _crop(settings)
    within, before, counts = (side // patch) ** 2, 0, []
    pixels, pooled, grids = [], list[NDArray[np.int64]](), []
    for image in images:
        crops, places = _overlapping(image, settings)
        whole = np.arange(within).reshape(side // patch, side // patch)
        shapes = []
        for at, lie in ((0, whole), (within, places)):
            squares, shape = squares_of(lie, settings["pooling_size"])
            pooled.append(np.where(squares < 0, -1, squares + at + before))
            shapes += shape
        parts = [interpolated(image, side, side), *crops]
        made = [numbers(part, settings, at_once=True).transpose(1, 2, 0) for part in parts]
        pixels += [_patches(part, patch) for part in made]
        grids.append(shapes)
        counts.append(len(parts))
        before += within * len(parts)
    return {
        "pixel_values": np.stack(pixels),
        "image_token_pooling": np.concatenate(pooled),
        "image_grids": np.array(grids),
        "image_num_crops": np.array(counts),
    }


def _crop(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pixels on a side of a crop, and of a patch.

    Raises:
        CheckpointError: These, or the squares that rows are made of, are no squares, or crops have no middle.
    """
    size, pool, patch = (settings[name] for name in ("size", "pooling_size", "patch_size"))
    side, edges = size.get("height"), sum(settings["overlap_margins"]) * patch["height"]
    if side != size.get("width") or len({*pool}) > 1 or not edges < side or side % patch["height"]:
        raise CheckpointError(
            f"Cannot cut pictures into crops: `size` is {size!r}, `patch_size` {patch!r}, `pooling_size` {pool!r} and "
            f"`overlap_margins` {settings['overlap_margins']!r}. Expected squares, of whole patches, with room between "
            "the margins. Correct the processor's JSON."
        )
    if settings["resample"] != _BILINEAR:
        raise CheckpointError(
            f"Cannot resize pictures: `resample` is {settings['resample']!r}. Expected {_BILINEAR}, bilinear. Correct "
            "the processor's JSON."
        )
    return int(side), int(patch["height"])


def _overlapping(
    image: Pixels, settings: Mapping[str, Any]
) -> tuple[list[Pixels], NDArray[np.int64]]:
    """Cut the canvas that suits a picture, which is stretched to it, into crops.

    Returns the crops, and of each patch of the canvas its number among those of all crops.
    """
    side, patch = _crop(settings)
    first, last = settings["overlap_margins"]
    edges = (first + last) * patch
    step = side - edges
    high, wide = _tiling(image, edges, step, settings["max_crops"])
    canvas = interpolated(image, high * step + edges, wide * step + edges)
    crops = [
        canvas[top : top + side, left : left + side]
        for top in range(0, high * step, step)
        for left in range(0, wide * step, step)
    ]
    count = side // patch
    places = np.arange(high * wide * count**2).reshape(high, wide, count, count)
    places[1:, :, :first] = places[:, 1:, :, :first] = -1
    places[:-1, :, count - last :] = places[:, :-1, :, count - last :] = -1
    flat = places.transpose(0, 2, 1, 3).reshape(-1)
    return crops, flat[flat >= 0].reshape(canvas.shape[0] // patch, canvas.shape[1] // patch)


def _tiling(image: Pixels, edges: int, step: int, most: int) -> tuple[int, int]:
    """Choose rows and columns of crops: those that enlarge a picture least, else shrink it least."""
    sides = range(1, most + 1)
    tilings = sorted(
        ((high, wide) for high in sides for wide in sides if high * wide <= most),
        key=lambda one: (one[0] * one[1], one[0]),
    )
    own = np.array(image.shape[:2], np.float32) - edges
    with np.errstate(divide="ignore"):  # a picture that is no larger than the margins
        scales = (np.array(tilings, np.float32) * step / own).min(1)
    enlarging = np.where(scales < 1, np.float32(10e9), scales)
    return tilings[int(scales.argmax() if (scales < 1).all() else enlarging.argmin())]


def squares_of(
    places: NDArray[np.int64], pool: Sequence[int]
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the patches of which each row is made, -1 beyond the sides, and rows and columns of rows."""
    missing = [-size % unit for size, unit in zip(places.shape, pool, strict=True)]
    around = [(one // 2, one - one // 2) for one in missing]
    filled = np.pad(places, around, constant_values=-1)
    high, wide = (size // unit for size, unit in zip(filled.shape, pool, strict=True))
    squares = filled.reshape(high, pool[0], wide, pool[1]).transpose(0, 2, 1, 3)
    return squares.reshape(high * wide, -1), [high, wide]


def _patches(crop: NDArray[Any], patch: int) -> NDArray[Any]:
    """Cut a crop (rows, columns, channels) into patches, (patches, values)."""
    count = len(crop) // patch
    blocks = crop.reshape(count, patch, count, patch, -1).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(count**2, -1)
