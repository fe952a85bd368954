# SPDX-License-Identifier: Apache-2.0
"""QEfficient's heights and widths of images -> `image_size` of a build."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo.errors import PlanError

_LIMITS = ("min_pixels", "max_pixels")


def read(
    height: int | Sequence[int] | None,
    width: int | Sequence[int] | None,
    num_frames: int | Sequence[int] | None,
    limits: Mapping[str, Any] | None,
) -> tuple[str, ...]:
    """Return the sizes of images, `HEIGHTxWIDTH` in pixels; empty without heights and widths.

    Args:
        height: Height of an image, or of several.
        width: Width of each.
        num_frames: Frames of a video of each size, or of all.
        limits: `min_pixels` and `max_pixels`, to which images are scaled.

    Raises:
        PlanError: The arguments do not belong together.
    """
    heights, widths = (
        [side] if isinstance(side, int) else [*(side or ())] for side in (height, width)
    )
    frames = len(heights) if num_frames is None or isinstance(num_frames, int) else len(num_frames)
    if not len(heights) == len(widths) == frames:
        raise PlanError(
            [
                f"`compile`: height is {height!r}, width {width!r} and num_frames {num_frames!r}; expected as many of "
                "each. Give a width for every height, and num_frames for every size or one for all."
            ]
        )
    limits = {name: value for name, value in (limits or {}).items() if value is not None}
    if limits.keys() - {*_LIMITS}:
        raise PlanError(
            [
                f"`compile`: mm_processor_kwargs is {limits!r}; expected {' and '.join(_LIMITS)}. Leave the rest out: "
                "the checkpoint's processor has its own settings."
            ]
        )
    if limits and not heights:
        warnings.warn(
            f"mm_processor_kwargs={limits!r} is left out: it limits height and width, which are not given.",
            stacklevel=3,
        )
    least, most = (
        limits.get(name, usual) for name, usual in zip(_LIMITS, (1, math.inf), strict=True)
    )
    sizes = (_scaled(*size, least, most) for size in zip(heights, widths, strict=True))
    return tuple(f"{tall}x{wide}" for tall, wide in sizes)


def _scaled(height: int, width: int, least: float, most: float) -> tuple[int, int]:
    """Return a size of the same shape with a number of pixels within limits."""
    pixels = height * width
    if pixels > most:
        scale = math.sqrt(most / pixels)
        return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))
    if pixels < least:
        scale = math.sqrt(least / pixels)
        return math.ceil(height * scale), math.ceil(width * scale)
    return height, width
