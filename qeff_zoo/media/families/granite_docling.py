# SPDX-License-Identifier: Apache-2.0
"""Image processor of Granite Docling; see `qeff_zoo.media.image_rules`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.media.image_rules import Arrays, cut, nearest_grid
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, resize

_NAMED = 16  # maximum tiles in a row or column, for which Granite Docling has names


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
