# SPDX-License-Identifier: Apache-2.0
"""Image processor of Gemma 3; see `qeff_zoo.media.image_rules`."""

import math
from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, stacked, uncropped
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings


def pan_and_scan(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Gemma 3: the whole image, and with `do_pan_and_scan` crops of an image that is much longer in one direction.

    Returns `pixel_values` (n + crops, 3, height, width) and `num_crops` (n).
    """
    arrays, counts = [], []
    for image in images:
        crops = _crops(image, settings) if settings.get("do_pan_and_scan") else []
        arrays += [uncropped(part, settings) for part in (image, *crops)]
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
