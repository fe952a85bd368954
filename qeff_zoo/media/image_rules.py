# SPDX-License-Identifier: Apache-2.0
"""Rules of image processors: images and settings in, arrays by the names of the model's inputs out.

A rule takes the images of one request. All are compared bit for bit with transformers' PIL backend.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError, MediaError
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import (
    Settings,
    crop_to_size,
    joined,
    numbers,
    pad_to_square,
    padded,
    resize,
    resize_across,
    resize_to_size,
    shortest_edge,
)

Arrays: TypeAlias = dict[str, NDArray[Any]]
Rule: TypeAlias = Callable[[Sequence[Pixels], Mapping[str, Any]], Arrays]


def stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stack the arrays of images into one.

    Raises:
        MediaError: If they have several shapes.
    """
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise MediaError(
            f"Cannot put {len(arrays)} images into one array: they have the shapes {sorted(shapes)}. This processor "
            "neither crops nor pads them to one size. Give images of one size, or one at a time."
        )
    return joined([array[None] for array in arrays])


def finished(image: Pixels, settings: Settings) -> NDArray[Any]:
    """Resize, crop, rescale and normalize an image, each if enabled."""
    if settings["do_resize"]:
        image = resize_to_size(image, settings)
    return numbers(crop_to_size(image, settings), settings)


def uncropped(image: Pixels, settings: Settings) -> NDArray[Any]:
    """Resize, rescale and normalize an image, each if enabled; it is never cropped."""
    return finished(image, {**settings, "do_center_crop": False})


def plain(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Default rule: one array per image, (n, 3, height, width)."""
    arrays = [finished(image, settings) for image in images]
    if settings.get("do_pad"):
        if size := settings.get("pad_size"):
            arrays.append(np.empty((3, size["height"], size["width"]), arrays[0].dtype))
            arrays = padded(arrays)[:-1]
        else:
            arrays = padded(arrays)
    return {"pixel_values": stacked(arrays)}


def larger_and_cropped(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """LeViT and PoolFormer: the shorter side resized to its length divided by `crop_pct`, then cropped.

    With `of_short_edges`, a size of height and width is the size before the crop.
    """
    size, share, arrays = settings["size"], settings["crop_pct"], []
    edge = size.get("shortest_edge")
    if settings.get("of_short_edges") and edge is None:
        return plain(images, settings)
    pair = [int(one / share) for one in ((edge, edge) if edge else (size["height"], size["width"]))]
    for image in images:
        if settings["do_resize"]:
            new = shortest_edge(image, pair[0]) if pair[0] == pair[1] else (pair[0], pair[1])
            image = resize(image, *new, settings["resample"])
        arrays.append(finished(image, {**settings, "do_resize": False}))
    return {"pixel_values": stacked(arrays)}


def square(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """LLaVA: with `do_pad`, padded to a square with the mean color."""
    if settings.get("do_pad"):
        color = [int(value * 255) for value in settings["image_mean"]]
        images = [pad_to_square(image, color) for image in images]
    return {"pixel_values": stacked([finished(image, settings) for image in images])}


def long_edge_in_square(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DeepSeek-VL and Janus: the longer side resized to the square's side, padded with the mean color."""
    squares = [in_square(image, settings) for image in images]
    return {"pixel_values": stacked([numbers(square, settings) for square in squares])}


def in_square(image: Pixels, settings: Settings) -> Pixels:
    """Resize an image by its longer side, and pad it to a square with the mean color, each if enabled."""
    if settings["do_resize"]:
        scale = settings["size"]["height"] / max(image.shape[:2])
        height, width = (max(round(side * scale), settings["min_size"]) for side in image.shape[:2])
        image = resize(image, height, width, settings["resample"])
    if not settings["do_pad"]:
        return image
    return pad_to_square(image, [int(value * 255) for value in settings["image_mean"]])


def _best_resolution(image: Pixels, choices: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Choose the (height, width) that keeps the most pixels; ties go to the one that wastes least."""
    own_height, own_width = image.shape[:2]

    def worth(choice: Sequence[int]) -> tuple[int, int]:
        height, width = choice
        scale = min(width / own_width, height / own_height)
        kept = min(int(own_width * scale) * int(own_height * scale), own_width * own_height)
        return kept, kept - width * height

    height, width = max(choices, key=worth)
    return height, width


def tiles_of_resolutions(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """LLaVA-NeXT: the whole image, then the tiles of the best of `image_grid_pinpoints`.

    Without pinpoints the whole image alone, centered in a square of the mean color.

    Returns `pixel_values` (n, tiles, 3, height, width), zeros beyond an image's tiles, and `image_sizes` (n, 2).
    """
    size, resample = settings["size"], settings["resample"]
    height, width = (
        (size["height"], size["width"]) if "height" in size else (size["shortest_edge"],) * 2
    )
    crop = settings.get("crop_size")
    tile = crop["height"] if crop else height
    arrays = []
    for image in images:
        if not settings["image_grid_pinpoints"]:
            color = [int(value * 255) for value in settings["image_mean"]]
            arrays.append(finished(pad_to_square(image, color), settings)[None])
            continue
        tall, wide = _best_resolution(image, settings["image_grid_pinpoints"])
        scale_down, scale_right = tall / image.shape[0], wide / image.shape[1]
        if scale_right < scale_down:
            inner = resize(
                image, min(math.ceil(image.shape[0] * scale_right), tall), wide, resample
            )
        else:
            inner = resize(image, tall, min(math.ceil(image.shape[1] * scale_down), wide), resample)
        canvas = np.zeros((tall, wide, 3), np.uint8)
        top, left = (tall - inner.shape[0]) // 2, (wide - inner.shape[1]) // 2
        canvas[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        tiles = [resize(image, height, width, resample), *cut(canvas, tile, tile)]
        arrays.append(stacked([finished(part, settings) for part in tiles]))
    if settings.get("do_pad"):
        most = max(len(array) for array in arrays)
        arrays = [
            np.pad(array, [(0, most - len(array)), (0, 0), (0, 0), (0, 0)]) for array in arrays
        ]
    return {
        "pixel_values": stacked(arrays),
        "image_sizes": np.array([image.shape[:2] for image in images]),
    }


def tile_side(settings: Settings) -> int:
    """Return the side of a square tile."""
    side = settings["size"].get("height")
    if not side or side != settings["size"].get("width"):
        raise CheckpointError(
            f"Cannot cut images into tiles: `size` is {settings['size']!r}. Expected a height and a width that are "
            "equal. Correct the processor's JSON."
        )
    return int(side)


def cut(image: NDArray[Any], height: int, width: int) -> list[NDArray[Any]]:
    """Cut (rows, columns, …) into parts of this height and width, row by row."""
    return [
        image[top : top + height, left : left + width]
        for top in range(0, image.shape[0], height)
        for left in range(0, image.shape[1], width)
    ]


def tiles_and_whole(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Idefics3 and SmolVLM: tiles of an image, row by row, then the whole image; or the whole image alone.

    Returns `pixel_values` (1, tiles of all images, 3, height, width), `pixel_attention_mask` of the same pixels, and
    `rows` and `cols` (1, n): numbers of tiles, 0 for an image without tiles.
    """
    side, resample = settings["max_image_size"]["longest_edge"], settings["resample"]
    parts, rows, columns = [], [], []
    for image in images:
        if settings["do_resize"]:
            image = resize(image, *_long_edge(image, settings["size"]), resample)
        high = wide = 0
        if not settings["do_image_splitting"]:
            parts.append(resize(image, side, side, resample))
        else:
            image = resize(image, *_whole_tiles(image, side), resample)
            if max(image.shape[:2]) > side:
                high, wide = image.shape[0] // side, image.shape[1] // side
                parts += cut(image, side, side)
                image = resize(image, side, side, resample)
            parts.append(image)
        rows.append(high)
        columns.append(wide)
    arrays = [numbers(part, settings) for part in parts]
    result = {"rows": np.array([rows]), "cols": np.array([columns])}
    if not settings.get("do_pad"):
        return {"pixel_values": stacked(arrays)[None], **result}
    masks = [np.ones(array.shape[1:], np.int64) for array in arrays]
    return {
        "pixel_values": stacked(padded(arrays))[None],
        "pixel_attention_mask": stacked(padded(masks))[None],
        **result,
    }


def frames_as_squares(frames: Sequence[Pixels], settings: Settings) -> Arrays:
    """SmolVLM: frames of a video, each in the size of a tile, as in torchvision; `pixel_values` (frames, 3, …)."""
    side, resample = settings["max_image_size"]["longest_edge"], settings["resample"]
    if settings["do_resize"]:
        sizes = [_long_edge(frames[0], settings["size"]), (side, side)]
        for size in sizes:
            frames = [resize_across(frame, *size, resample) for frame in frames]
    return {"pixel_values": stacked([numbers(frame, settings, at_once=True) for frame in frames])}


def _long_edge(image: Pixels, size: Mapping[str, int]) -> tuple[int, int]:
    """Return the height and width with a longer side of `longest_edge`; the other is even, neither exceeds 4096."""
    if "longest_edge" not in size:
        return size["height"], size["width"]
    height, width = image.shape[:2]
    ratio = width / height
    if width >= height:
        width = size["longest_edge"]
        height = int(width / ratio)
        height = max(height + height % 2, 1)
    else:
        height = size["longest_edge"]
        width = int(height * ratio)
        width = max(width + width % 2, 1)
    ratio = width / height
    if width >= height and width > 4096:
        height, width = int(4096 / ratio), 4096
    elif height > width and height > 4096:
        height, width = 4096, int(4096 * ratio)
    return max(height, 1), max(width, 1)


def _whole_tiles(image: Pixels, side: int) -> tuple[int, int]:
    """Return the height and width, rounded up to whole tiles."""
    height, width = image.shape[:2]
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return math.ceil(int(width / ratio) / side) * side, width
    height = math.ceil(height / side) * side
    return height, math.ceil(int(height * ratio) / side) * side


def nearest_grid(image: Pixels, settings: Settings, longest: int | None = None) -> tuple[int, int]:
    """Choose columns and rows with the nearest aspect ratio; ties go to the last grid that is not far too large.

    Args:
        image: The image to tile.
        settings: Settings of the processor.
        longest: Maximum number of rows and of columns; None for the maximum number of tiles.
    """
    height, width = image.shape[:2]
    size, most = settings["size"], settings["max_patches"]
    sides = range(1, min(most, longest or most) + 1)
    grids = [
        (wide, high)
        for wide in sides
        for high in sides
        if settings["min_patches"] <= wide * high <= most
    ]
    best, nearest = (1, 1), math.inf
    for grid in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(width / height - grid[0] / grid[1])
        large_enough = width * height > 0.5 * size["height"] * size["width"] * grid[0] * grid[1]
        if distance < nearest or (distance == nearest and large_enough):
            best, nearest = grid, distance
    return best
