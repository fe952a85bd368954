# SPDX-License-Identifier: Apache-2.0
"""What several tests of videos and others use."""

from typing import Any

import numpy as np

SIZES = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}


def video_of(count: int, seed: int, height: int = 16, width: int = 24) -> list[Any]:
    return [*np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)]
