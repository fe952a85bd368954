# SPDX-License-Identifier: Apache-2.0
"""Image processors that transformers computes by torchvision alone: its resizing, rescaling and normalizing.

Arrays are compared bit for bit with transformers' processors, except for the resizing of Nemotron, which is in float32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.images import Pixels, blank, is_blank
from qeff_zoo.media.interpolation import resize_bytes
from qeff_zoo.media.pixels import Settings, check_room, numbers

#: Pillow's filters that torchvision computes alike: bilinear and bicubic.
_BILINEAR, _BICUBIC = 2, 3


def resized(image: Pixels, height: int, width: int, settings: Settings) -> Pixels:
    """Resize as torchvision does.

    Raises:
        MediaError: If the result would have no pixels, or too many.
        CheckpointError: If the filter is neither bilinear nor bicubic.
    """
    check_room(image, height, width)
    return resize_bytes(image, height, width, cubic=is_cubic(settings))


def is_cubic(settings: Settings) -> bool:
    """Return whether images are resized bicubically; bilinearly otherwise.

    Raises:
        CheckpointError: If the settings have another filter.
    """
    if settings["resample"] not in (_BILINEAR, _BICUBIC):
        raise CheckpointError(
            f"Cannot resize images: `resample` is {settings['resample']!r}. Expected {_BILINEAR} (bilinear) or "
            f"{_BICUBIC} (bicubic). Correct the processor's JSON."
        )
    return bool(settings["resample"] == _BICUBIC)


def rescaled(image: Pixels, settings: Settings) -> NDArray[Any]:
    """Rescale and normalize in one step, or rescale by a factor of float32.

    Returns float32 (3, height, width), or uint8 with neither.
    """
    if settings["do_normalize"] or not settings["do_rescale"]:
        return numbers(image, settings, at_once=True)
    if is_blank(image):
        return np.broadcast_to(np.float32(0), (3, *image.shape[:2]))
    table = np.arange(256, dtype=np.float32) * np.float32(settings["rescale_factor"])
    return table[image.transpose(2, 0, 1)]


# --- tiles -----------------------------------------------------------------------------------------------------------


def padded_below(image: Pixels, height: int, width: int) -> Pixels:
    """Pad an image with black at the bottom and right."""
    if is_blank(image):
        return blank(height, width)
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    return canvas


# --- patches of images of any size -----------------------------------------------------------------------------------
