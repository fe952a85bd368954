# SPDX-License-Identifier: Apache-2.0
"""Image processor of MiniMax M3; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.patch_rules import patches_of_frames, smart_size
from qeff_zoo.media.pixels import Settings, joined
from qeff_zoo.media.torchvision_rules import rescaled, resized

#: The size of files of MiniMax M3 that its own code never read, and the pixels that it uses.
_UNREAD = {"height": 672, "width": 672}


_OF_MINIMAX = {"shortest_edge": 4 * 28 * 28, "longest_edge": 451_584}


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
