# SPDX-License-Identifier: Apache-2.0
"""Rules of image processors: images and settings in, arrays by the names of the model's inputs out.

A rule takes the images of one request. All are compared bit for bit with transformers' PIL backend.
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


def _finished(image: Pixels, settings: Settings) -> NDArray[Any]:
    """Resize, crop, rescale and normalize an image, each if enabled."""
    if settings["do_resize"]:
        image = resize_to_size(image, settings)
    return numbers(crop_to_size(image, settings), settings)


def _resized(image: Pixels, settings: Settings) -> NDArray[Any]:
    return _finished(image, {**settings, "do_center_crop": False})


def plain(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Default rule: one array per image, (n, 3, height, width)."""
    arrays = [_finished(image, settings) for image in images]
    if settings.get("do_pad"):
        if size := settings.get("pad_size"):
            arrays.append(np.empty((3, size["height"], size["width"]), arrays[0].dtype))
            arrays = padded(arrays)[:-1]
        else:
            arrays = padded(arrays)
    return {"pixel_values": stacked(arrays)}


def cropped_below_384(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """ConvNeXt and ResNet: a center crop below 384 pixels; from 384 on the whole image, resized to a square."""
    edge, arrays = settings["size"]["shortest_edge"], []
    for image in images:
        if settings["do_resize"] and edge < 384:
            larger = shortest_edge(image, int(edge / settings["crop_pct"]))
            crop = {"do_center_crop": True, "crop_size": {"height": edge, "width": edge}}
            image = crop_to_size(resize(image, *larger, settings["resample"]), crop)
        elif settings["do_resize"]:
            image = resize(image, edge, edge, settings["resample"])
        arrays.append(numbers(crop_to_size(image, settings), settings))
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
        arrays.append(_finished(image, {**settings, "do_resize": False}))
    return {"pixel_values": stacked(arrays)}


def blue_first(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """MobileViT: cropped images whose first color is blue, without normalization."""
    arrays = plain(images, {**settings, "do_normalize": False})["pixel_values"]
    if settings["do_flip_channel_order"]:
        arrays = arrays[:, ::-1]
    return {"pixel_values": np.ascontiguousarray(arrays)}


def divided_twice(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """EfficientNet: with `include_top`, divided by the deviation once more; `rescale_offset` subtracts 1 before."""
    if settings["rescale_offset"] and settings["do_rescale"]:
        mean = [one + 1 for one in settings["image_mean"]]
        settings = {**settings, "image_mean": mean}
    arrays = plain(images, settings)["pixel_values"]
    if settings["include_top"]:
        arrays = arrays / np.asarray(settings["image_std"], np.float32).reshape(-1, 1, 1)
    return {"pixel_values": arrays}


def divisor_of_windows(settings: Settings) -> int:
    """Return the number that sides of padded images are multiples of: Swin2SR's `size_divisor`, once `pad_size`."""
    former: Mapping[str, int] = settings.get("pad_size") or {"height": 8}
    return int(settings.get("size_divisor") or former["height"])


def reflected_windows(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Swin2SR: images of their own size, reflected at the lower and right edge to the next multiple of a divisor."""
    divisor, arrays = divisor_of_windows(settings), []
    for image in images:
        array = numbers(image, {**settings, "do_normalize": False})
        if settings["do_pad"]:
            more = [divisor - side % divisor for side in array.shape[1:]]
            array = np.pad(array, [(0, 0), *((0, one) for one in more)], mode="symmetric")
        arrays.append(array)
    return {"pixel_values": stacked(arrays)}


def longest_edge(image: Pixels, edge: int) -> tuple[int, int]:
    """Return the height and width of an image resized to this length of its longer side; halves are rounded up."""
    height, width = image.shape[:2]
    scale = edge / max(height, width)
    return int(height * scale + 0.5), int(width * scale + 0.5)


def padded_squares(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """SAM: the longer side resized, padded with zeros at the lower and right edge to `pad_size`."""
    arrays = []
    for image in images:
        if settings["do_resize"]:
            sides = longest_edge(image, settings["size"]["longest_edge"])
            image = resize(image, *sides, settings["resample"])
        array = numbers(image, settings)
        if settings["do_pad"]:
            size = settings["pad_size"]["height"], settings["pad_size"]["width"]
            more = [(0, new - old) for new, old in zip(size, array.shape[1:], strict=True)]
            array = np.pad(array, [(0, 0), *more])
        arrays.append(array)
    return {"pixel_values": stacked(arrays)}


def whole(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """SegFormer: resized and never cropped, whatever is set."""
    return {"pixel_values": stacked([_resized(image, settings) for image in images])}


#: timm's names of Pillow's filters.
_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def settings_of_timm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the processor settings for `pretrained_cfg` of a timm checkpoint."""
    _, height, width = config.get("input_size") or (3, 224, 224)
    settings = {
        "image_mean": config.get("mean"),
        "image_std": config.get("std"),
        "resample": _FILTERS.get(str(config.get("interpolation"))),
        "crop_pct": config.get("crop_pct"),
        "crop_mode": config.get("crop_mode"),
    }
    return {
        "image_processor_type": "TimmWrapperImageProcessor",
        "size": {"height": height, "width": width},
        **{name: value for name, value in settings.items() if value is not None},
    }


def scaled_and_cropped(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """timm: resized to `size` divided by `crop_pct`, by the mode `crop_mode`, then center-cropped.

    Returns `pixel_values` (n, 3, height, width).
    """
    size = settings["size"]["height"], settings["size"]["width"]
    tall, wide = (math.floor(side / settings["crop_pct"]) for side in size)
    mode, fill, arrays = settings["crop_mode"], (0, 0, 0), []
    if mode == "border":
        fill = tuple(round(255 * value) for value in settings["image_mean"])
    for image in images:
        if mode == "squash":
            new = tall, wide
        elif mode == "center" and tall == wide:
            new = shortest_edge(image, tall)
        else:
            ratios = image.shape[0] / tall, image.shape[1] / wide
            ratio = max(ratios) if mode == "border" else min(ratios)
            new = round(image.shape[0] / ratio), round(image.shape[1] / ratio)
        scaled = resize(image, *new, settings["resample"])
        arrays.append(numbers(_middle(scaled, *size, fill), settings))
    return {"pixel_values": stacked(arrays)}


def _middle(image: Pixels, height: int, width: int, fill: Sequence[int]) -> Pixels:
    """Crop the center; a color pads an image that is smaller. Halves are rounded as in torchvision."""
    down, right = (
        max(new - old, 0) for new, old in zip((height, width), image.shape, strict=False)
    )
    canvas = np.empty((image.shape[0] + down, image.shape[1] + right, 3), image.dtype)
    canvas[:] = fill
    top, left = down // 2, right // 2
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    top, left = round((canvas.shape[0] - height) / 2), round((canvas.shape[1] - width) / 2)
    return canvas[top : top + height, left : left + width]


def square(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """LLaVA: with `do_pad`, padded to a square with the mean color."""
    if settings.get("do_pad"):
        color = [int(value * 255) for value in settings["image_mean"]]
        images = [pad_to_square(image, color) for image in images]
    return {"pixel_values": stacked([_finished(image, settings) for image in images])}


def long_edge_in_square(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DeepSeek-VL and Janus: the longer side resized to the square's side, padded with the mean color."""
    squares = [_in_square(image, settings) for image in images]
    return {"pixel_values": stacked([numbers(square, settings) for square in squares])}


def long_edge_in_two_squares(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DeepSeek-VL 7B: a larger square, `high_res_pixel_values`, and `pixel_values`, which is resized from it."""
    changed = ("size", "resample", "image_mean", "image_std")
    finer = {**settings} | {name: settings[f"high_res_{name}"] for name in changed}
    large = [_in_square(image, finer) if settings["do_resize"] else image for image in images]
    small = [_in_square(image, settings) if settings["do_resize"] else image for image in large]
    return {
        "pixel_values": stacked([numbers(image, settings) for image in small]),
        "high_res_pixel_values": stacked([numbers(image, finer) for image in large]),
    }


def _in_square(image: Pixels, settings: Settings) -> Pixels:
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
            arrays.append(_finished(pad_to_square(image, color), settings)[None])
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
        arrays.append(stacked([_finished(part, settings) for part in tiles]))
    if settings.get("do_pad"):
        most = max(len(array) for array in arrays)
        arrays = [
            np.pad(array, [(0, most - len(array)), (0, 0), (0, 0), (0, 0)]) for array in arrays
        ]
    return {
        "pixel_values": stacked(arrays),
        "image_sizes": np.array([image.shape[:2] for image in images]),
    }


def cut(image: NDArray[Any], height: int, width: int) -> list[NDArray[Any]]:
    """Cut (rows, columns, …) into parts of this height and width, row by row."""
    return [
        image[top : top + height, left : left + width]
        for top in range(0, image.shape[0], height)
        for left in range(0, image.shape[1], width)
    ]


def whole_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Pixtral: reduced to `size`, rounded up to whole patches, padded to the largest image.

    Returns `pixel_values` (n, 3, height, width) and `image_sizes` (n, 2), the height and width of each image.
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
        arrays.append(numbers(crop_to_size(image, settings), settings))
    sizes = np.array([array.shape[1:] for array in arrays])
    return {
        "pixel_values": stacked(padded(arrays) if settings.get("do_pad") else arrays),
        "image_sizes": sizes,
    }


def pan_and_scan(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Gemma 3: the whole image, and with `do_pan_and_scan` crops of an image that is much longer in one direction.

    Returns `pixel_values` (n + crops, 3, height, width) and `num_crops` (n).
    """
    arrays, counts = [], []
    for image in images:
        crops = _crops(image, settings) if settings.get("do_pan_and_scan") else []
        arrays += [_resized(part, settings) for part in (image, *crops)]
        counts.append(len(crops))
    return {"pixel_values": stacked(arrays), "num_crops": np.array(counts)}


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


def tiles_of_one_canvas(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """GOT-OCR2, InternVL and Aya Vision: with `crop_to_patches`, the tiles of the nearest grid, then the whole image.

    Returns `pixel_values` (tiles of all images, 3, height, width) and `num_patches` (n).
    """
    size, resample = settings["size"], settings["resample"]
    arrays, counts = [], []
    for image in images:
        if not (settings["crop_to_patches"] and settings["max_patches"] > 1):
            arrays.append(_resized(image, settings))
            counts.append(1)
            continue
        wide, high = nearest_grid(image, settings)
        canvas = resize(image, high * size["height"], wide * size["width"], resample)
        parts = cut(canvas, size["height"], size["width"])
        if len(parts) > 1:
            parts.append(resize(image, size["height"], size["width"], resample))
        arrays += [numbers(part, settings) for part in parts]
        counts.append(len(parts))
    return {"pixel_values": stacked(arrays), "num_patches": np.array(counts)}


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
