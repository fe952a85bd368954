# SPDX-License-Identifier: Apache-2.0
"""Image processor of Nemotron H Omni; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Sequence

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels, is_blank
from qeff_zoo.media.interpolation import resize_shares
from qeff_zoo.media.pixels import Settings, check_room, joined
from qeff_zoo.media.torchvision_rules import is_cubic


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
                image.astype(np.float32), high * patch, wide * patch, cubic=is_cubic(settings)
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
