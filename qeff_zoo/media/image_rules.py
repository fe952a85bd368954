# SPDX-License-Identifier: Apache-2.0
"""What each kind of processor makes of pictures: pixels and settings in, arrays out, under the names its model takes.

A rule takes the pictures of one request. All are compared bit for bit with transformers' PIL backend.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import (
    Settings,
    cropped_as_asked,
    numbers,
    pad_to_square,
    padded,
    resize,
    resized_as_asked,
    shortest_edge,
)

Arrays: TypeAlias = dict[str, NDArray[Any]]
Rule: TypeAlias = Callable[[Sequence[Pixels], Mapping[str, Any]], Arrays]


def _stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise MediaError(
            f"Cannot put {len(arrays)} pictures into one array: they have the shapes {sorted(shapes)}. This processor "
            "neither crops nor pads them to one size. Give pictures of one size, or one at a time."
        )
    return np.stack(arrays)


def _finished(image: Pixels, settings: Settings) -> NDArray[Any]:
    """Resize, crop, scale and normalize, as far as each is asked for."""
    if settings["do_resize"]:
        image = resized_as_asked(image, settings)
    return numbers(cropped_as_asked(image, settings), settings)


def _resized(image: Pixels, settings: Settings) -> NDArray[Any]:
    return _finished(image, {**settings, "do_center_crop": False})


def plain(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """One picture, one array: (n, 3, height, width)."""
    arrays = [_finished(image, settings) for image in images]
    if settings.get("do_pad"):
        if size := settings.get("pad_size"):
            arrays.append(np.empty((3, size["height"], size["width"]), arrays[0].dtype))
            arrays = padded(arrays)[:-1]
        else:
            arrays = padded(arrays)
    return {"pixel_values": _stacked(arrays)}


def cropped_below_384(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """ConvNeXt and ResNet: below 384 pixels, a part of the middle; from 384 on the whole picture, made square."""
    edge, arrays = settings["size"]["shortest_edge"], []
    for image in images:
        if settings["do_resize"] and edge < 384:
            larger = shortest_edge(image, int(edge / settings["crop_pct"]))
            crop = {"do_center_crop": True, "crop_size": {"height": edge, "width": edge}}
            image = cropped_as_asked(resize(image, *larger, settings["resample"]), crop)
        elif settings["do_resize"]:
            image = resize(image, edge, edge, settings["resample"])
        arrays.append(numbers(cropped_as_asked(image, settings), settings))
    return {"pixel_values": _stacked(arrays)}


def square(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """LLaVA: with `do_pad`, a square of the mean color around the picture."""
    if settings.get("do_pad"):
        color = [int(value * 255) for value in settings["image_mean"]]
        images = [pad_to_square(image, color) for image in images]
    return {"pixel_values": _stacked([_finished(image, settings) for image in images])}


def long_edge_in_square(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DeepSeek-VL and Janus: the longer side as long as the square, the rest in the mean color."""
    color = [int(value * 255) for value in settings["image_mean"]]
    arrays = []
    for image in images:
        if settings["do_resize"]:
            scale = settings["size"]["height"] / max(image.shape[:2])
            height, width = (
                max(round(side * scale), settings["min_size"]) for side in image.shape[:2]
            )
            image = resize(image, height, width, settings["resample"])
        arrays.append(numbers(pad_to_square(image, color), settings))
    return {"pixel_values": _stacked(arrays)}


def _best_resolution(image: Pixels, choices: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Of (height, width), choose the one that keeps most pixels, and of those the one that wastes least."""
    own_height, own_width = image.shape[:2]

    def worth(choice: Sequence[int]) -> tuple[int, int]:
        height, width = choice
        scale = min(width / own_width, height / own_height)
        kept = min(int(own_width * scale) * int(own_height * scale), own_width * own_height)
        return kept, kept - width * height

    height, width = max(choices, key=worth)
    return height, width


def tiles_of_resolutions(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """LLaVA-NeXT: the whole picture, then the tiles of the best of `image_grid_pinpoints`.

    Returns `pixel_values` (n, tiles, 3, height, width), zeros beyond a picture's own tiles, and `image_sizes` (n, 2).
    """
    size, resample = settings["size"], settings["resample"]
    height, width = (
        (size["height"], size["width"]) if "height" in size else (size["shortest_edge"],) * 2
    )
    crop = settings.get("crop_size")
    tile = crop["height"] if crop else height
    arrays = []
    for image in images:
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
        tiles = [resize(image, height, width, resample), *_cut(canvas, tile)]
        arrays.append(_stacked([_finished(part, settings) for part in tiles]))
    if settings.get("do_pad"):
        most = max(len(array) for array in arrays)
        arrays = [
            np.pad(array, [(0, most - len(array)), (0, 0), (0, 0), (0, 0)]) for array in arrays
        ]
    return {
        "pixel_values": _stacked(arrays),
        "image_sizes": np.array([image.shape[:2] for image in images]),
    }


def _cut(image: Pixels, side: int) -> list[Pixels]:
    """Cut into squares, row by row."""
    height, width = image.shape[:2]
    return [
        image[top : top + side, left : left + side]
        for top in range(0, height, side)
        for left in range(0, width, side)
    ]


def whole_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Pixtral: at most `size`, rounded up to whole patches, padded to the largest.

    Returns `pixel_values` (n, 3, height, width) and `image_sizes` (n, 2), each picture's own height and width.
    """
    size, patch = settings["size"], settings["patch_size"]
    limits = (
        (size["longest_edge"],) * 2 if "longest_edge" in size else (size["height"], size["width"])
    )
    arrays = []
    for image in images:
        if settings["do_resize"]:
            height, width = image.shape[:2]
            ratio = max(height / limits[0], width / limits[1])
            if ratio > 1:
                height, width = math.floor(height / ratio), math.floor(width / ratio)
            height = ((height - 1) // patch["height"] + 1) * patch["height"]
            width = ((width - 1) // patch["width"] + 1) * patch["width"]
            image = resize(image, height, width, settings["resample"])
        arrays.append(numbers(cropped_as_asked(image, settings), settings))
    sizes = np.array([array.shape[1:] for array in arrays])
    return {
        "pixel_values": _stacked(padded(arrays) if settings.get("do_pad") else arrays),
        "image_sizes": sizes,
    }


def smart_size(image: Pixels, factor: int, fewest: int, most: int) -> tuple[int, int]:
    """Return height and width, multiples of `factor`, of about the same shape and between two numbers of pixels."""
    height, width = image.shape[:2]
    if max(height, width) / min(height, width) > 200:
        raise MediaError(
            f"Cannot read a picture of {width} x {height} pixels: one side is more than 200 times the other. Expected "
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


def _size_of_frames(image: Pixels, factor: int, fewest: int, most: int) -> tuple[int, int]:
    """As `smart_size`, of a picture that is two frames: it is scaled by one, and what is left is judged by both."""
    height, width = image.shape[:2]
    if (scale := max(factor / height, factor / width)) > 1:
        height, width = int(height * scale), int(width * scale)
    plain = smart_size(np.broadcast_to(image[:1, :1], (height, width, 3)), factor, 1, 1 << 62)
    if 2 * plain[0] * plain[1] > most:
        ratio = math.sqrt(2 * height * width / most)
        return tuple(
            max(factor, math.floor(side / ratio / factor) * factor) for side in (height, width)
        )
    if 2 * plain[0] * plain[1] < fewest:
        ratio = math.sqrt(fewest / (2 * height * width))
        return tuple(math.ceil(side * ratio / factor) * factor for side in (height, width))
    return plain


def grid_of_frames(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """GLM-4V: patches as of Qwen2-VL, of pictures whose size is chosen otherwise."""
    size, factor = settings["size"], settings["patch_size"] * settings["merge_size"]
    if settings["do_resize"]:
        images = [
            resize(
                image,
                *_size_of_frames(image, factor, size["shortest_edge"], size["longest_edge"]),
                settings["resample"],
            )
            for image in images
        ]
    return grid_of_patches(images, {**settings, "do_resize": False})


def grid_of_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Qwen2-VL to Qwen3-VL: patches in the order in which they are merged, each repeated for the frames it stands for.

    Returns `pixel_values` (patches of all pictures, numbers of one) and `image_grid_thw` (n, 3): frames, rows and
    columns of each.
    """
    size, rows, grids = settings["size"], [], []
    for image in images:
        if settings["do_resize"]:
            factor = settings["patch_size"] * settings["merge_size"]
            wanted = smart_size(image, factor, size["shortest_edge"], size["longest_edge"])
            image = resize(image, *wanted, settings["resample"])
        array = np.asarray(numbers(image, settings), np.float32)
        made, grid = patches_of_frames(array[None], settings)
        rows.append(made)
        grids.append(grid)
    return {"pixel_values": np.concatenate(rows), "image_grid_thw": np.array(grids, np.int64)}


def grid_of_told_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """VideoLLaMA 3: as `grid_of_patches`, and `image_merge_sizes` (n,), by how many on a side they are merged."""
    merges = np.full(len(images), settings["merge_size"])
    return {**grid_of_patches(images, settings), "image_merge_sizes": merges}


def patches_of_frames(
    frames: NDArray[np.float32], settings: Settings
) -> tuple[NDArray[np.float32], list[int]]:
    """Cut frames (n, 3, height, width) into patches of several frames each; the last is repeated to fill up.

    Returns the patches in the order in which they are merged, and steps of time, rows and columns.
    """
    patch, merge, deep = (
        settings[name] for name in ("patch_size", "merge_size", "temporal_patch_size")
    )
    filling = np.repeat(frames[-1:], -len(frames) % deep, axis=0)
    frames = np.concatenate([frames, filling])
    steps, high, wide = len(frames) // deep, frames.shape[2] // patch, frames.shape[3] // patch
    blocks = frames.reshape(
        steps, deep, 3, high // merge, merge, patch, wide // merge, merge, patch
    ).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    made = blocks.reshape(steps * high * wide, 3 * deep * patch * patch)
    return made, [steps, high, wide]


def lines_of_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """PaddleOCR-VL: patches line by line, of pictures no side of which is shorter than what is merged.

    Returns `pixel_values` (patches of all pictures, 3, rows, columns) and `image_grid_thw`, as `grid_of_patches`.
    """
    patch, size = settings["patch_size"], settings["size"]
    factor, rows, grids = patch * settings["merge_size"], [], []
    for image in images:
        if settings["do_resize"]:
            wide = np.broadcast_to(image[:1, :1], (*_at_least(image, factor), 3))
            wanted = smart_size(wide, factor, size["shortest_edge"], size["longest_edge"])
            image = resize(image, *wanted, settings["resample"])
        array = np.asarray(numbers(image, settings), np.float32)
        high, wide_ = array.shape[1] // patch, array.shape[2] // patch
        blocks = array.reshape(3, high, patch, wide_, patch).transpose(1, 3, 0, 2, 4)
        rows.append(blocks.reshape(high * wide_, 3, patch, patch))
        grids.append([1, high, wide_])
    return {"pixel_values": np.concatenate(rows), "image_grid_thw": np.array(grids, np.int64)}


def _at_least(image: Pixels, factor: int) -> tuple[int, int]:
    """Return the height and width, of the same shape, with no side below `factor`."""
    height, width = image.shape[:2]
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    return height, width


def placed_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Gemma 4: as many patches as `max_soft_tokens` rows take, and where each lies; the rest is filled up.

    Returns `pixel_values` (n, patches, numbers of one) and `image_position_ids` (n, patches, 2): columns and rows, -1
    for what fills up.
    """
    patch, unit = settings["patch_size"], settings["pooling_kernel_size"]
    most, rows, places = settings["max_soft_tokens"] * unit**2, [], []
    for image in images:
        if settings["do_resize"]:
            wanted = _filled(image, unit * patch, most * patch**2)
            image = resize(image, *wanted, settings["resample"])
        array = np.asarray(numbers(image, settings), np.float32)
        high, wide = array.shape[1] // patch, array.shape[2] // patch
        blocks = array.reshape(3, high, patch, wide, patch).transpose(1, 3, 2, 4, 0)
        found = np.zeros((most, 3 * patch**2), np.float32)
        found[: high * wide] = blocks.reshape(high * wide, -1)
        where = np.full((most, 2), -1, np.int64)
        where[: high * wide] = np.indices((high, wide))[::-1].reshape(2, -1).T
        rows.append(found)
        places.append(where)
    return {"pixel_values": np.stack(rows), "image_position_ids": np.stack(places)}


def _filled(image: Pixels, unit: int, most: int) -> tuple[int, int]:
    """Return the height and width in whole units, of about the same shape, with as many pixels as there may be."""
    height, width = image.shape[:2]
    scale = math.sqrt(most / (height * width))
    tall, wide = (math.floor(scale * side / unit) for side in (height, width))
    longest = most // unit**2
    if not tall:
        tall, wide = 1, min(width // height, longest)
    elif not wide:
        tall, wide = min(height // width, longest), 1
    return tall * unit, wide * unit


def pan_and_scan(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Gemma 3: the whole picture, and with `do_pan_and_scan` parts of one that is much longer in one direction.

    Returns `pixel_values` (n + crops, 3, height, width) and `num_crops` (n).
    """
    arrays, counts = [], []
    for image in images:
        crops = _crops(image, settings) if settings.get("do_pan_and_scan") else []
        arrays += [_resized(part, settings) for part in (image, *crops)]
        counts.append(len(crops))
    return {"pixel_values": _stacked(arrays), "num_crops": np.array(counts)}


def _crops(image: Pixels, settings: Settings) -> list[Pixels]:
    height, width = image.shape[:2]
    long, short = max(height, width), min(height, width)
    smallest = settings["pan_and_scan_min_crop_size"]
    if long / short < settings["pan_and_scan_min_ratio_to_activate"]:
        return []
    count = min(math.floor(long / smallest), math.floor(long / short + 0.5))
    count = min(settings["pan_and_scan_max_num_crops"], max(2, count))
    side = math.ceil(long / count)
    if min(side, short) < smallest:
        return []
    starts = range(0, count * side, side)
    if width >= height:
        return [image[:, start : start + side] for start in starts]
    return [image[start : start + side] for start in starts]


def tiles_and_whole(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Idefics3 and SmolVLM: tiles of a picture, row by row, then the whole; or the whole alone.

    Returns `pixel_values` (1, tiles of all pictures, 3, height, width), `pixel_attention_mask` of the same pixels, and
    `rows` and `cols` (1, n): how many tiles, 0 where a picture was not cut.
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
                parts += _cut(image, side)
                image = resize(image, side, side, resample)
            parts.append(image)
        rows.append(high)
        columns.append(wide)
    arrays = [numbers(part, settings) for part in parts]
    found = {"rows": np.array([rows]), "cols": np.array([columns])}
    if not settings.get("do_pad"):
        return {"pixel_values": _stacked(arrays)[None], **found}
    masks = [np.ones(array.shape[1:], np.int64) for array in arrays]
    return {
        "pixel_values": _stacked(padded(arrays))[None],
        "pixel_attention_mask": _stacked(padded(masks))[None],
        **found,
    }


def _long_edge(image: Pixels, size: Mapping[str, int]) -> tuple[int, int]:
    """Return the height and width whose longer side is `longest_edge`, the other one even, neither beyond 4096."""
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


def tiles_of_one_canvas(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """GOT-OCR2, InternVL and Aya Vision: with `crop_to_patches`, the tiles of the nearest grid, then the whole.

    Returns `pixel_values` (tiles of all pictures, 3, height, width) and `num_patches` (n).
    """
    size, resample = settings["size"], settings["resample"]
    arrays, counts = [], []
    for image in images:
        if not (settings["crop_to_patches"] and settings["max_patches"] > 1):
            arrays.append(_resized(image, settings))
            counts.append(1)
            continue
        wide, high = _nearest_grid(image, settings)
        canvas = resize(image, high * size["height"], wide * size["width"], resample)
        parts = [
            canvas[top : top + size["height"], left : left + size["width"]]
            for top in range(0, canvas.shape[0], size["height"])
            for left in range(0, canvas.shape[1], size["width"])
        ]
        if len(parts) > 1:
            parts.append(resize(image, size["height"], size["width"], resample))
        arrays += [numbers(part, settings) for part in parts]
        counts.append(len(parts))
    return {"pixel_values": _stacked(arrays), "num_patches": np.array(counts)}


def _nearest_grid(image: Pixels, settings: Settings) -> tuple[int, int]:
    """Choose columns and rows: the nearest shape, and of equally near ones the last that is not far too large."""
    height, width = image.shape[:2]
    size, most = settings["size"], settings["max_patches"]
    sides = range(1, most + 1)
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
