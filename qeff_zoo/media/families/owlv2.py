# SPDX-License-Identifier: Apache-2.0
"""Image processor of OWLv2; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.blurring import blurred_and_resized
from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels, is_blank
from qeff_zoo.media.pixels import Settings, numbers


def squares(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """OWLv2: rescaled, padded with black to squares at the bottom and right, blurred and resized as by scikit-image.

    Returns `pixel_values` (n, 3, height, width).
    """
    size, arrays = (settings["size"]["height"], settings["size"]["width"]), []
    for image in images:
        colors = numbers(image, {**settings, "do_normalize": False}).astype(np.float32, copy=False)
        if is_blank(image):
            arrays.append(np.broadcast_to(np.float32(0), (3, *size)))
            continue
        if settings["do_pad"]:
            side = max(image.shape[:2])
            canvas = np.zeros((3, side, side), np.float32)
            canvas[:, : image.shape[0], : image.shape[1]] = colors
            colors = canvas
        if settings["do_resize"]:
            least, most = colors.min(), colors.max()
            colors = np.stack([blurred_and_resized(color, *size) for color in colors])
            colors = np.clip(colors, least, most)
        if settings["do_normalize"]:
            mean, std = (
                np.asarray(settings[name], np.float32).reshape(3, 1, 1)
                for name in ("image_mean", "image_std")
            )
            colors = (colors - mean) / std
        arrays.append(colors)
    return {"pixel_values": stacked(arrays)}
