# SPDX-License-Identifier: Apache-2.0
"""Image processor of Idefics 2; see `qeff_zoo.media.image_rules`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, padded, resize


def wholes_or_parts(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Idefics 2: each image, and with `do_image_splitting` its four quarters before it, between two sizes.

    Returns `pixel_values` (1, parts of all images, 3, height, width) and `pixel_attention_mask` of the same pixels.
    """
    parts = list[Pixels]()
    for image in images:
        tall, wide = (side // 2 for side in image.shape[:2])
        if settings["do_image_splitting"]:
            halves = image[:tall], image[tall:]
            parts += [part for half in halves for part in (half[:, :wide], half[:, wide:])]
        parts.append(image)
    if narrow := next((part.shape for part in parts if not part.size), None):
        raise MediaError(
            f"Cannot cut an image into quarters: one of them has {narrow[1]} x {narrow[0]} pixels. Expected two pixels "
            "on each side at least. Give a larger image."
        )
    if settings["do_resize"]:
        size, resample = settings["size"], settings["resample"]
        parts = [resize(part, *_between_sizes(part, size), resample) for part in parts]
    arrays = [numbers(part, settings) for part in parts]
    if not settings["do_pad"]:
        return {"pixel_values": stacked(arrays)[None]}
    masks = [np.ones(array.shape[1:], np.int64) for array in arrays]
    return {
        "pixel_values": stacked(padded(arrays))[None],
        "pixel_attention_mask": stacked(padded(masks))[None],
    }


def _between_sizes(image: Pixels, size: Mapping[str, int]) -> tuple[int, int]:
    """Return the height and width within a maximum longer side, and with no side below the minimum."""
    if "height" in size:
        return size["height"], size["width"]
    height, width = image.shape[:2]
    ratio, most, least = width / height, size["longest_edge"], size["shortest_edge"]
    if width >= height and width > most:
        height, width = int(most / ratio), most
    elif height > width and height > most:
        height, width = most, int(most * ratio)
    return max(height, least), max(width, least)
