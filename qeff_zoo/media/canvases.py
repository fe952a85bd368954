# SPDX-License-Identifier: Apache-2.0
"""Image processors that tile a canvas: selection of the canvas for each image, and its tiles."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError, MediaError
from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.interpolation import resize_bytes, resize_numbers
from qeff_zoo.media.pixels import numbers, pad_to_square, resize
from qeff_zoo.media.torchvision_rules import rescaled, resized

_NAMED = 16  # maximum tiles in a row or column, for which Granite Docling has names
_BICUBIC = 3  # Pillow's number
_LEAST = 10  # minimum pixels on a side of an image for Phi-4 multimodal


def tiles_of_canvases(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Llama 3.2 Vision: tiles of the best canvas, to which the image is padded at the bottom and right.

    Returns `pixel_values` (1, n, tiles, 3, side, side), zeros for missing tiles; `aspect_ratio_ids` (1, n), the
    number of the canvas; and `aspect_ratio_mask` (1, n, tiles), 1 for a tile.
    """
    side, most = _side(settings), settings["max_image_tiles"]
    sides = range(1, most + 1)
    canvases = [(high, wide) for high in sides for wide in sides if high * wide <= most]
    pixels = np.zeros((1, len(images), most, 3, side, side), np.float32)
    ids = np.zeros((1, len(images)), np.int64)
    mask = np.zeros((1, len(images), most), np.int64)
    for row, image in enumerate(images):
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
        pixels[0, row, : len(tiles)] = tiles
        ids[0, row] = number + 1
        mask[0, row, : len(tiles)] = 1
    return {"pixel_values": pixels, "aspect_ratio_ids": ids, "aspect_ratio_mask": mask}


def _side(settings: Mapping[str, Any]) -> int:
    """Return the side of a square tile."""
    side = settings["size"].get("height")
    if not side or side != settings["size"].get("width"):
        raise CheckpointError(
            f"Cannot cut images into tiles: `size` is {settings['size']!r}. Expected a height and a width that are "
            "equal. Correct the processor's JSON."
        )
    return int(side)


def _nearest_canvas(image: Pixels, canvases: NDArray[Any]) -> int:
    """Choose the canvas that enlarges an image least, else the one that shrinks it least; ties go to the smallest."""
    scales = (canvases / image.shape[:2]).min(1)
    enlarging = scales[scales >= 1]
    chosen = np.flatnonzero(scales == (enlarging.min() if len(enlarging) else scales.max()))
    return int(chosen[np.argmin(canvases[chosen].prod(1))])


def _fitting(image: Pixels, side: int, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of the same aspect ratio that fit a canvas and fill a tile in one direction."""
    tall, broad = (
        int(np.clip(image.shape[0], side, height)),
        int(np.clip(image.shape[1], side, width)),
    )
    down, across = tall / image.shape[0], broad / image.shape[1]
    if across < down:
        return min(math.floor(image.shape[0] * across) or 1, tall), broad
    return tall, min(math.floor(image.shape[1] * down) or 1, broad)


def whole_and_covering_tiles(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Ovis 2: the whole image, then with `crop_to_patches` tiles of the smallest grid that covers nearly all of it.

    Returns `pixel_values` (tiles of all images, 3, height, width) and `grids` (n, 2), rows and columns of tiles.
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
    """Choose columns and rows: the fewest tiles that cover 90% of an image's area, else the largest coverage.

    As in transformers, coverage is measured with rows and columns of the grid swapped.
    """
    side, sides = settings["size"]["height"], range(1, settings["max_patches"] + 1)
    grids = [(length, other) for length in sides for other in sides if length * other <= sides[-1]]
    kept = {grid: _kept(image, grid, side) for grid in grids}
    enough = [grid for grid in grids if kept[grid] > 0.9]
    if enough:
        return min(enough, key=lambda grid: (math.prod(grid), -kept[grid]))
    return min(grids, key=lambda grid: (-kept[grid], math.prod(grid)))


def _kept(image: Pixels, grid: tuple[int, int], side: int) -> float:
    """Return the share of an image's area that is left after each part is reduced to fit a square."""
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


def whole_and_filled_tiles(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Perception LM: the whole image, then tiles of the best canvas, to which the image is stretched, row by row.

    Bit for bit transformers' torchvision backend, the only one. With `vision_input_type` other than "thumb+tile" the
    whole image alone.

    Returns `pixel_values` (n, tiles, 3, side, side). All images must have the same number of tiles.
    """
    side, tiles = settings["tile_size"], list[NDArray[Any]]()
    for image in images:
        parts = [resized(image, side, side, settings) if settings["do_resize"] else image]
        if settings["do_resize"] and settings["vision_input_type"] == "thumb+tile":
            wide, high = _filled_canvas(image, side, settings["max_num_tiles"])
            parts += cut(resized(image, high * side, wide * side, settings), side, side)
        tiles.append(np.stack([rescaled(part, settings) for part in parts]))
    return {"pixel_values": stacked(tiles)}


def _filled_canvas(image: Pixels, side: int, most: int) -> tuple[int, int]:
    """Choose columns and rows of tiles: the canvas on which the image becomes largest without being reduced.

    If every canvas reduces the image, the nearest aspect ratio is chosen, with the most tiles.
    """
    height, width = image.shape[:2]
    counts = [
        (columns, count // columns)
        for count in range(most, 0, -1)
        for columns in range(1, count + 1)
        if count % columns == 0
    ]
    shapes: dict[float, list[tuple[int, int]]] = {}
    for columns, rows in counts:
        shapes.setdefault(columns / rows, []).append((columns, rows))
    best, largest = None, 0.0
    for columns, rows in (one for alike in shapes.values() for one in alike):
        if columns * side >= width and rows * side >= height:
            short = _shorter_side(height, width, rows * side, columns * side)
            if short >= largest:
                best, largest = (columns, rows), short
    if best:
        return best
    ratio = width / height
    if ratio >= 1:
        nearest = min(
            (shape for shape in shapes if shape <= ratio), key=lambda one: abs(one - ratio)
        )
        return max(shapes[nearest])
    nearest = min(
        (shape for shape in shapes if shape > ratio), key=lambda one: abs(1 / one - 1 / ratio)
    )
    return max(shapes[nearest], key=lambda one: one[1])


def _shorter_side(height: int, width: int, tall: int, broad: int) -> float:
    """Return the length in pixels of the shorter side of an image that was enlarged to fit."""
    scale, shape = min(broad / width, tall / height), width / height
    if shape == 1:
        return scale * height
    return math.floor(scale * width / shape if shape > 1 else scale * height * shape)


def tiles_of_pages(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Granite Docling: tiles of the nearest grid, row by row, then the whole image; or the whole image alone.

    Returns `pixel_values` (1, tiles of all images, 3, height, width); `pixel_attention_mask` (1, tiles), all true
    since no tile is padding; `rows` and `cols` (1, n), numbers of tiles; and with `fine_route` `tile_fine_mask` (1).
    """
    high, wide = (settings["size"][name] for name in ("height", "width"))
    arrays, rows, columns = [], [], []
    for image in images:
        most = _most_tiles(image, settings)
        least = min(settings["min_patches"], most)
        right, down = nearest_grid(
            image, {**settings, "min_patches": least, "max_patches": most}, longest=_NAMED
        )
        canvas = resize(image, down * high, right * wide, settings["resample"])
        parts = cut(canvas, high, wide)
        if len(parts) > 1:
            parts.append(resize(image, high, wide, settings["resample"]))
        arrays += [numbers(part, settings) for part in parts]
        rows.append(down)
        columns.append(right)
    return {
        "pixel_values": np.stack(arrays)[None],
        "pixel_attention_mask": np.ones((1, len(arrays)), bool),
        "rows": np.array([rows]),
        "cols": np.array([columns]),
        **({"tile_fine_mask": np.ones(1, bool)} if settings["fine_route"] else {}),
    }


def _most_tiles(image: Pixels, settings: Mapping[str, Any]) -> int:
    """Return the maximum number of tiles, which is larger for a wide page that would be reduced by much."""
    most: int = settings["max_patches"] if settings["crop_to_patches"] else 1
    dense, scale, least, widest = (
        settings[f"dense_{name}"]
        for name in ("max_patches", "max_scale", "min_aspect", "max_aspect")
    )
    height, width = image.shape[:2]
    applies = most > 1 and dense and (scale > 0 or least > 0)
    if not applies or 0 < widest < width / height or not (least <= 0 or width / height > least):
        return most
    if scale > 0:
        right, _ = nearest_grid(image, settings, longest=_NAMED)
        if not right * settings["size"]["width"] / width < scale:
            return most
    return int(dense)


def smaller_tiles_and_whole(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """DeepSeek-OCR 2: the whole image in a square, and tiles of a large image, in another size.

    Returns `pixel_values` (n, 3, side, side); `num_local_patches` (n), the number of tiles of each image; and if any
    image has tiles `pixel_values_local` (tiles of all images, 3, tile_size, tile_size).
    """
    side, resample, cuts = settings["tile_size"], settings["resample"], settings["crop_to_patches"]
    whole_side = settings["size"]["height"] if cuts else side
    wholes, tiles, counts = [], list[NDArray[Any]](), []
    for image in images:
        parts: list[Pixels] = []
        if cuts and max(image.shape[:2]) > side:
            of_tiles = {**settings, "size": {"height": side, "width": side}}
            columns, rows = nearest_grid(image, of_tiles)
            parts = cut(resize(image, rows * side, columns * side, resample), side, side)
        tiles += [numbers(part, settings) for part in parts]
        counts.append(len(parts))
        scale = whole_side / max(image.shape[:2])
        height, width = (round(length * scale) for length in image.shape[:2])
        whole = resize(image, height, width, resample)
        wholes.append(numbers(pad_to_square(whole, settings["background_color"]), settings))
    return {
        "pixel_values": np.stack(wholes),
        "num_local_patches": np.array(counts),
        **({"pixel_values_local": np.stack(tiles)} if tiles else {}),
    }


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
    side, patch = _side(settings), settings["patch_size"]["height"]
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
