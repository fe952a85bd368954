# SPDX-License-Identifier: Apache-2.0
"""Image processor of LFM2-VL; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings
from qeff_zoo.media.torchvision_rules import rescaled, resized


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
