# SPDX-License-Identifier: Apache-2.0
"""Image processor of EfficientNet; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays, plain
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings


def divided_twice(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """EfficientNet: with `include_top`, divided by the deviation once more; `rescale_offset` subtracts 1 before."""
    if settings["rescale_offset"] and settings["do_rescale"]:
        mean = [one + 1 for one in settings["image_mean"]]
        settings = {**settings, "image_mean": mean}
    arrays = plain(images, settings)["pixel_values"]
    if settings["include_top"]:
        arrays = arrays / np.asarray(settings["image_std"], np.float32).reshape(-1, 1, 1)
    return {"pixel_values": arrays}
