# SPDX-License-Identifier: Apache-2.0
"""Image processor of DPT; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.depth_rules import in_multiples
from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, numbers, resize


def whole_multiples(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DPT and Depth Anything: sides of whole multiples, perhaps in the image's aspect ratio, and centered on zeros.

    Returns `pixel_values` (n, 3, height, width); with `keep_aspect_ratio` or `do_pad` the size depends on the image.
    """
    divisor, arrays = settings.get("size_divisor"), []
    for image in images:
        if settings["do_resize"]:
            image = resize(image, *in_multiples(image.shape, settings), settings["resample"])
        array = numbers(image, settings)
        if settings.get("do_pad") and divisor:
            missing = [-side % divisor for side in array.shape[1:]]
            array = np.pad(array, [(0, 0), *((more // 2, more - more // 2) for more in missing)])
        arrays.append(array)
    return {"pixel_values": stacked(arrays)}
