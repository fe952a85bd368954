# SPDX-License-Identifier: Apache-2.0
"""Image processor of SegFormer; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

from qeff_zoo.media.image_rules import Arrays, stacked, uncropped
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings


def resized(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """SegFormer: resized and never cropped, whatever is set."""
    return {"pixel_values": stacked([uncropped(image, settings) for image in images])}
