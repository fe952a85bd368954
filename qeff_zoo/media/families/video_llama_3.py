# SPDX-License-Identifier: Apache-2.0
"""Image processor of VideoLLaMA 3; see `qeff_zoo.media.image_rules`."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.patch_rules import grid_of_patches
from qeff_zoo.media.pixels import Settings


def grid_with_merge_sizes(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """VideoLLaMA 3: `grid_of_patches` and `image_merge_sizes` (n,), the merge size per side."""
    merges = np.full(len(images), settings["merge_size"])
    return {**grid_of_patches(images, settings), "image_merge_sizes": merges}
