# SPDX-License-Identifier: Apache-2.0
"""Image processor of GLPN; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, numbers, resize


def multiples_below(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """GLPN: sides rounded down to multiples of `size_divisor`; `pixel_values` (n, 3, height, width)."""
    divisor, arrays = settings["size_divisor"], []
    for image in images:
        if settings["do_resize"]:
            height, width = (side // divisor * divisor for side in image.shape[:2])
            image = resize(image, height, width, settings["resample"])
        arrays.append(numbers(image, settings))
    return {"pixel_values": stacked(arrays)}
