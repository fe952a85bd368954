# SPDX-License-Identifier: Apache-2.0
"""Image processor of Gemma 4; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.patch_rules import filled_size
from qeff_zoo.media.pixels import Settings, numbers, resize
from qeff_zoo.media.torchvision_rules import rescaled, resized


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


def placed_patches(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Gemma 4: the patches of at most `max_soft_tokens` image tokens, and their positions, with padding.

    Returns `pixel_values` (n, patches, values of one) and `image_position_ids` (n, patches, 2): columns and rows, -1
    for padding.
    """
    patch, unit = settings["patch_size"], settings["pooling_kernel_size"]
    most, rows, positions = settings["max_soft_tokens"] * unit**2, [], []
    for image in images:
        if settings["do_resize"]:
            wanted = filled_size(image, unit * patch, most * patch**2)
            image = resize(image, *wanted, settings["resample"])
        array = np.asarray(numbers(image, settings), np.float32)
        high, wide = array.shape[1] // patch, array.shape[2] // patch
        blocks = array.reshape(3, high, patch, wide, patch).transpose(1, 3, 2, 4, 0)
        patches = np.zeros((most, 3 * patch**2), np.float32)
        patches[: high * wide] = blocks.reshape(high * wide, -1)
        where = np.full((most, 2), -1, np.int64)
        where[: high * wide] = np.indices((high, wide))[::-1].reshape(2, -1).T
        rows.append(patches)
        positions.append(where)
    return {"pixel_values": np.stack(rows), "image_position_ids": np.stack(positions)}
