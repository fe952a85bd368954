# SPDX-License-Identifier: Apache-2.0
"""Image processor of MobileViT; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, plain
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings


def blue_first(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """MobileViT: cropped images whose first color is blue, without normalization."""
    arrays = plain(images, {**settings, "do_normalize": False})["pixel_values"]
    if settings["do_flip_channel_order"]:
        arrays = arrays[:, ::-1]
    return {"pixel_values": np.ascontiguousarray(arrays)}
