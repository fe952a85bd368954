# SPDX-License-Identifier: Apache-2.0
"""Sizes of images for depth models: multiples of a number of pixels."""

from collections.abc import Sequence

from qeff_zoo.media.pixels import Settings


def in_multiples(shape: Sequence[int], settings: Settings) -> tuple[int, int]:
    """Return `size` in multiples of `ensure_multiple_of`; the aspect ratio is kept by the smaller change of a side."""
    multiple = settings["ensure_multiple_of"]
    scales = [
        settings["size"][name] / old for name, old in zip(("height", "width"), shape, strict=False)
    ]
    if settings["keep_aspect_ratio"]:
        down, right = scales
        scales = [right if abs(1 - right) < abs(1 - down) else down] * 2
    height, width = (
        int(round(scale * old / multiple) * multiple)
        for scale, old in zip(scales, shape, strict=False)
    )
    return height, width
