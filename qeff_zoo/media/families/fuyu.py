# SPDX-License-Identifier: Apache-2.0
"""Image processor of Fuyu; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, joined, numbers, resize


def patches_of_whole_lines(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """Fuyu: reduced to `size`, padded to whole patches with a constant pixel value.

    Returns `pixel_values` (patches of all images, values) in row-major order, and `grids` (n, 2), rows and columns.
    """
    size, patch = settings["size"], settings["patch_size"]
    high, wide = patch["height"], patch["width"]
    patches, grids = [], []
    for image in images:
        height, width = image.shape[:2]
        scale = min(size["height"] / height, size["width"] / width)
        if settings["do_resize"] and scale < 1:
            height, width = int(height * scale), int(width * scale)
            image = resize(image, height, width, settings["resample"])
        missing = ((0, -height % high), (0, -width % wide), (0, 0))
        if settings["do_pad"]:
            image = np.pad(image, missing, constant_values=int(settings["padding_value"]))
        tall, broad = image.shape[0] // high, image.shape[1] // wide
        if (tall * high, broad * wide) != image.shape[:2] or tall * high > size["height"]:
            raise MediaError(
                f"Cannot cut an image of {width} x {height} pixels into patches of {wide} x {high}: `do_pad` is "
                f"{settings['do_pad']!r}, and `size` {size!r}. Expected whole patches. Correct the processor's JSON."
            )
        values = numbers(image, settings).reshape(3, tall, high, broad, wide)
        patches.append(values.transpose(1, 3, 2, 4, 0).reshape(tall * broad, -1))
        grids.append([tall, broad])
    return {"pixel_values": joined(patches), "grids": np.array(grids)}
