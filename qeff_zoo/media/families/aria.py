# SPDX-License-Identifier: Apache-2.0
"""Image processor of Aria; see `qeff_zoo.media.image_rules`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import numbers, resize

#: Pixels on a side of the squares that Aria's processor supports.
_SQUARES = 490, 980


def corner_of_square(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Aria: the longer side resized to the square's side, the shorter one at least to a minimum; then padded.

    Returns `pixel_values` (n, 3, side, side) and `pixel_mask` (n, side, side).

    Raises:
        CheckpointError: If the processor splits images, or has a square of another size.
    """
    side, least = settings["max_image_size"], settings["min_image_size"]
    if settings["split_image"] or side not in _SQUARES:
        raise CheckpointError(
            f"Cannot process images: `split_image` is {settings['split_image']!r}, `max_image_size` {side!r}. Expected "
            f"false, and one of {_SQUARES}. Correct the processor's JSON."
        )
    arrays, masks = [], []
    for image in images:
        scale = side / max(image.shape[:2])
        height, width = (max(int(length * scale), least) for length in image.shape[:2])
        if image.shape[1] >= image.shape[0]:
            width = side
        else:
            height = side
        square = np.zeros((side, side, 3), np.uint8)
        square[:height, :width] = resize(image, height, width, settings["resample"])
        arrays.append(numbers(square, settings))
        mask = np.zeros((side, side), bool)
        mask[:height, :width] = True
        masks.append(mask)
    return {"pixel_values": np.stack(arrays), "pixel_mask": np.stack(masks)}
