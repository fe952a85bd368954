# SPDX-License-Identifier: Apache-2.0
"""Image processor of Swin2SR; see `qeff_zoo.media.image_rules`."""

from collections.abc import Mapping, Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, numbers


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
