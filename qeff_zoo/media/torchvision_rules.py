# SPDX-License-Identifier: Apache-2.0
"""Image processors that transformers computes by torchvision alone: its resizing, rescaling and normalizing.

Arrays are compared bit for bit with transformers' processors, except for the resizing of Nemotron, which is in float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError, MediaError
from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid
from qeff_zoo.media.images import Pixels, blank, is_blank
from qeff_zoo.media.interpolation import resize_bytes, resize_shares
from qeff_zoo.media.patch_rules import filled_size, patches_of_frames, smart_size
from qeff_zoo.media.pixels import Settings, check_room, joined, numbers

#: Pillow's filters that torchvision computes alike: bilinear and bicubic.
_BILINEAR, _BICUBIC = 2, 3
#: The size of files of MiniMax M3 that its own code never read, and the pixels that it uses.
_UNREAD = {"height": 672, "width": 672}
_OF_MINIMAX = {"shortest_edge": 4 * 28 * 28, "longest_edge": 451_584}


def resized(image: Pixels, height: int, width: int, settings: Settings) -> Pixels:
    """Resize as torchvision does.

    Raises:
        MediaError: If the result would have no pixels, or too many.
        CheckpointError: If the filter is neither bilinear nor bicubic.
    """
    check_room(image, height, width)
    return resize_bytes(image, height, width, cubic=_is_cubic(settings))


def _is_cubic(settings: Settings) -> bool:
    if settings["resample"] not in (_BILINEAR, _BICUBIC):
        raise CheckpointError(
            f"Cannot resize images: `resample` is {settings['resample']!r}. Expected {_BILINEAR} (bilinear) or "
            f"{_BICUBIC} (bicubic). Correct the processor's JSON."
        )
    return bool(settings["resample"] == _BICUBIC)


def _require_resizing(settings: Settings) -> None:
    if not settings["do_resize"]:
        raise CheckpointError(
            "Cannot process images: `do_resize` is false, and images of this model have certain sizes only. Expected "
            "true. Correct the processor's JSON."
        )


def rescaled(image: Pixels, settings: Settings) -> NDArray[Any]:
    """Rescale and normalize in one step, or rescale by a factor of float32.

    Returns float32 (3, height, width), or uint8 with neither.
    """
    if settings["do_normalize"] or not settings["do_rescale"]:
        return numbers(image, settings, at_once=True)
    if is_blank(image):
        return np.broadcast_to(np.float32(0), (3, *image.shape[:2]))
    table = np.arange(256, dtype=np.float32) * np.float32(settings["rescale_factor"])
    return table[image.transpose(2, 0, 1)]


# --- tiles -----------------------------------------------------------------------------------------------------------


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
        fitted = _padded(resized(image, height, width, settings), *canvas)
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


def _padded(image: Pixels, height: int, width: int) -> Pixels:
    """Pad an image with black at the bottom and right."""
    if is_blank(image):
        return blank(height, width)
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    return canvas


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


def tiles_of_fitting_grids(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Command A Vision: tiles of the grid to which an image is enlarged least, row by row, then the whole image.

    Returns `pixel_values` (tiles of all images, 3, height, width) and `num_patches` (n).
    """
    high, wide = (settings["size"][name] for name in ("height", "width"))
    arrays, counts = [], []
    for image in images:
        if not settings["crop_to_patches"] and not settings["do_resize"]:
            parts = [image]
        else:
            rows, columns = _fitting_grid(image, high, settings)
            parts = cut(resized(image, rows * high, columns * wide, settings), high, wide)
        if len(parts) > 1:
            parts.append(resized(image, high, wide, settings))
        arrays += [rescaled(part, settings) for part in parts]
        counts.append(len(parts))
    return {"pixel_values": np.stack(arrays), "num_patches": np.array(counts)}


def _fitting_grid(image: Pixels, side: int, settings: Settings) -> tuple[int, int]:
    """Choose rows and columns of tiles: the least enlargement, else the least reduction; ties go to the fewest."""
    sides = range(1, (settings["max_patches"] if settings["crop_to_patches"] else 1) + 1)
    grids = [(wide, high) for wide in sides for high in sides if wide * high <= sides[-1]]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = (np.array(grids) * side / np.array(image.shape[1::-1])).min(1)
    enlarging = np.where(scales < 1, np.inf, scales)
    columns, rows = grids[scales.argmax() if (scales < 1).all() else enlarging.argmin()]
    return rows, columns


def tiles_of_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """LFM2-VL: an image of whole merged patches; a large one also in tiles before it.

    Returns `pixel_values` (tiles of all images, patches, values of one) with padding, without `do_pad` to the largest
    tile alone; `pixel_attention_mask` (tiles, patches); `spatial_shapes` (tiles, 2), rows and columns of patches;
    `image_rows` and `image_cols` (n), of tiles; and `image_sizes` (n, 2), height and width of the whole.
    """
    patch, unit = settings["encoder_patch_size"], settings["downsample_factor"]
    side, splits = settings["tile_size"], settings["do_image_splitting"]
    merged, budget = patch * unit, (patch * unit) ** 2 * settings["max_image_tokens"]
    most = max(settings["max_image_tokens"] * unit**2, (side // patch) ** 2 if splits else 0)
    tiles, grids, sizes = list[NDArray[Any]](), [], []
    for image in images:
        height, width = _merged_size(image, merged, settings)
        large = math.prod(max(patch, round(length / merged) * merged) for length in image.shape[:2])
        columns = rows = 1
        parts = []
        cuts = splits and not settings["min_tiles"] == settings["max_tiles"] == 1
        if cuts and large > budget * settings["max_pixels_tolerance"]:
            of_tiles = {
                **settings,
                "size": {"height": side, "width": side},
                "min_patches": settings["min_tiles"],
                "max_patches": settings["max_tiles"],
            }
            columns, rows = nearest_grid(image, of_tiles)
            parts = cut(resized(image, rows * side, columns * side, settings), side, side)
        if len(parts) != 1 and (settings["use_thumbnail"] or not parts):
            parts.append(resized(image, height, width, settings))
        tiles += [rescaled(part, settings) for part in parts]
        grids.append((rows, columns))
        sizes.append((height, width))
    if not settings["do_pad"]:
        most = min(most, max(tile.shape[1] * tile.shape[2] // patch**2 for tile in tiles))
    return {
        **_sequences(tiles, patch, most),
        "image_rows": np.array([rows for rows, _ in grids]),
        "image_cols": np.array([columns for _, columns in grids]),
        "image_sizes": np.array(sizes),
    }


def _merged_size(image: Pixels, unit: int, settings: Settings) -> tuple[int, int]:
    """Return the height and width in whole merged patches, between two numbers of them."""
    height, width = image.shape[:2]
    least, most = (settings[name] * unit**2 for name in ("min_image_tokens", "max_image_tokens"))
    tall, broad = (max(unit, round(side / unit) * unit) for side in (height, width))
    if tall * broad > most:
        ratio = math.sqrt(height * width / most)
        return tuple(max(unit, math.floor(side / ratio / unit) * unit) for side in (height, width))
    if tall * broad < least:
        ratio = math.sqrt(least / (height * width))
        return tuple(math.ceil(side * ratio / unit) * unit for side in (height, width))
    return tall, broad


def _sequences(tiles: Sequence[NDArray[Any]], patch: int, most: int) -> Arrays:
    """Return the patches of each tile, line by line and pixel by pixel, padded to one number."""
    pixels = np.zeros((len(tiles), most, 3 * patch**2), np.float32)
    mask, shapes = np.zeros((len(tiles), most), np.int64), []
    for number, tile in enumerate(tiles):
        high, wide = tile.shape[1] // patch, tile.shape[2] // patch
        if high * wide > most:
            raise MediaError(
                f"Cannot process an image: it becomes {high * wide:,} patches. Expected at most {most:,}. Crop it: it "
                "is too narrow for this model."
            )
        lines = tile.reshape(3, high, patch, wide, patch).transpose(1, 3, 2, 4, 0)
        pixels[number, : high * wide] = lines.reshape(high * wide, -1)
        mask[number, : high * wide] = 1
        shapes.append((high, wide))
    return {
        "pixel_values": pixels,
        "pixel_attention_mask": mask,
        "spatial_shapes": np.array(shapes),
    }


# --- patches of images of any size -----------------------------------------------------------------------------------


def grid_of_resized_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """MiniMax M3: the patches of Qwen2-VL; see `patch_rules.grid_of_patches`."""
    size, rows, grids = settings["size"], [], []
    limits = _OF_MINIMAX if size == _UNREAD else size
    for image in images:
        if settings["do_resize"]:
            factor = settings["patch_size"] * settings["merge_size"]
            wanted = smart_size(image, factor, limits["shortest_edge"], limits["longest_edge"])
            image = resized(image, *wanted, settings)
        values = np.asarray(rescaled(image, settings), np.float32)
        patches, grid = patches_of_frames(values[None], settings)
        rows.append(patches)
        grids.append(grid)
    return {"pixel_values": joined(rows), "image_grid_thw": np.array(grids, np.int64)}


def padded_lines_of_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Kimi K2.5: patches in row-major order, of an image that is reduced if it is large, and padded with black.

    Returns `pixel_values` (patches of all images, 3, rows, columns) and `image_grid_thw` (n, 3).
    """
    patch, rows, grids = settings["patch_size"], [], []
    for image in images:
        if settings["do_resize"]:
            height, width = _reduced_size(image, settings)
            factor = patch * settings["merge_size"]
            image = resized(image, height, width, settings)
            image = _padded(image, height + -height % factor, width + -width % factor)
        values = np.asarray(rescaled(image, settings), np.float32)
        high, wide = (length // patch for length in values.shape[1:])
        blocks = values.reshape(3, high, patch, wide, patch).transpose(1, 3, 0, 2, 4)
        rows.append(blocks.reshape(high * wide, 3, patch, patch))
        grids.append([1, high, wide])
    return {"pixel_values": joined(rows), "image_grid_thw": np.array(grids, np.int64)}


def _reduced_size(image: Pixels, settings: Settings) -> tuple[int, int]:
    """Return the height and width within a number of patches in all, and on a side."""
    patch, longest = settings["patch_size"], settings["size"]["max_height"]
    sides = image.shape[:2]
    count = math.prod(max(1.0, side // patch) for side in sides)
    scale = min(
        1.0,
        math.sqrt(settings["max_patches"] / count),
        *(longest * patch / side for side in sides),
    )
    height, width = (min(max(1, int(side * scale)), longest * patch) for side in sides)
    return height, width


def placed_merged_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Gemma 4 Unified: patches that each become an image token, and their positions, with padding.

    Returns `pixel_values` (n, tokens, values of a patch) and `image_position_ids` (n, tokens, 2): columns and rows, -1
    for padding.
    """
    most, unit = settings["max_soft_tokens"], settings["pooling_kernel_size"]
    side, rows, positions = settings["patch_size"] * unit, [], []
    for image in images:
        if settings["do_resize"]:
            wanted = filled_size(image, side, most * side**2)
            image = resized(image, *wanted, settings)
        values = np.asarray(rescaled(image, settings), np.float32)
        high, wide = values.shape[1] // side, values.shape[2] // side
        if high * wide > most:
            raise MediaError(
                f"Cannot process an image: it becomes {high * wide:,} patches. Expected at most {most:,}. Set "
                "`do_resize`, or crop it."
            )
        blocks = values.reshape(3, high, side, wide, side).transpose(1, 3, 2, 4, 0)
        patches = np.zeros((most, 3 * side**2), np.float32)
        patches[: high * wide] = blocks.reshape(high * wide, -1)
        where = np.full((most, 2), -1, np.int64)
        where[: high * wide] = np.indices((high, wide))[::-1].reshape(2, -1).T
        rows.append(patches)
        positions.append(where)
    return {"pixel_values": np.stack(rows), "image_position_ids": np.stack(positions)}


def lines_of_float_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Nemotron 3 Nano Omni: patches in row-major order, of an image that is resized in float32 and not cut to bytes.

    Returns `pixel_values` (patches of all images, values of one) and `image_grid_hw` (n, 2).
    """
    patch, rows, grids = settings["patch_size"], [], []
    mean, std = (
        np.asarray(settings[name], np.float32)[:, None, None]
        for name in ("image_mean", "image_std")
    )
    if settings["do_rescale"] and settings["do_normalize"]:
        mean, std = (values * np.float32(1 / settings["rescale_factor"]) for values in (mean, std))
    for image in images:
        high, wide = _budgeted_grid(image, len(images), settings)
        check_room(image, high * patch, wide * patch)
        if is_blank(image):
            rows.append(np.broadcast_to(np.float32(0), (high * wide, 3 * patch**2)))
        else:
            exact = resize_shares(
                image.astype(np.float32), high * patch, wide * patch, cubic=_is_cubic(settings)
            ).transpose(2, 0, 1)
            if settings["do_normalize"]:
                exact = (exact - mean) / std
            elif settings["do_rescale"]:
                exact = exact * np.float32(settings["rescale_factor"])
            blocks = exact.reshape(3, high, patch, wide, patch).transpose(1, 3, 0, 2, 4)
            rows.append(blocks.reshape(high * wide, -1))
        grids.append([high, wide])
    return {"pixel_values": joined(rows), "image_grid_hw": np.array(grids, np.int64)}


def _budgeted_grid(image: Pixels, count: int, settings: Settings) -> tuple[int, int]:
    """Return rows and columns of patches, multiples of a merged square, within the model's budget."""
    merge, least = round(1 / settings["downsample_ratio"]), settings["min_num_patches"]
    most = max((settings["max_model_len"] - 4) * merge**2, least * count)
    if settings["max_num_patches"]:
        most = min(most, settings["max_num_patches"])
    most = max(most, least)
    high, wide = (round(length / settings["patch_size"] + 0.5) for length in image.shape[:2])
    scale = min(math.sqrt(most / (high * wide)), 1.0)
    high, wide = (math.floor(scale * side) for side in (high, wide))
    if not high * wide:
        raise MediaError(
            f"Cannot process an image of {image.shape[1]} x {image.shape[0]} pixels: it would have no patches. "
            "Expected at least one on each side. Crop it: it is too narrow for this model."
        )
    if most > least > high * wide:
        scale = math.sqrt(least / (high * wide))
        high, wide = (math.ceil(scale * side) for side in (high, wide))
    high = _whole_squares(high, wide, merge, most)
    return high, _whole_squares(wide, high, merge, most)


def _whole_squares(side: int, other: int, merge: int, most: int) -> int:
    """Return a side as a multiple of a merged square: rounded up if the patches stay within their number."""
    remainder = side % merge
    if not remainder:
        return side
    up = side + merge - remainder
    return up if up * other <= most else max(merge, side - remainder)
