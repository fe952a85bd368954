# SPDX-License-Identifier: Apache-2.0
"""Blurred and resized maps of numbers with the results of scipy's `gaussian_filter` and `zoom`, bit for bit.

A few numbers of images of 2 x 2 pixels are known to differ, by one unit of the last place.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

_TRUNCATED = 4.0  # standard deviations of the kernel's radius


def blurred(maps: Array, axis: int, sigma: float, radius: int | None = None, *, mode: str) -> Array:
    """Return numbers blurred along an axis by a Gaussian; sums are float64, results float32.

    Args:
        maps: Numbers, of any shape.
        axis: Number of the axis.
        sigma: Standard deviation in pixels.
        radius: Radius of the kernel in pixels; None for four standard deviations.
        mode: Padding of the edges by numpy, "symmetric" or "reflect".
    """
    radius = int(_TRUNCATED * sigma + 0.5) if radius is None else radius
    kernel = np.exp(-0.5 / sigma**2 * np.arange(-radius, radius + 1) ** 2)
    kernel /= kernel.sum()
    margins = [(radius, radius) if number == axis else (0, 0) for number in range(maps.ndim)]
    wide, size = np.pad(maps, margins, mode=mode).astype(np.float64), maps.shape[axis]  # type: ignore[call-overload]

    def shifted(by: int) -> Array:
        part: list[Any] = [slice(None)] * maps.ndim
        part[axis] = slice(radius + by, radius + by + size)
        window: Array = wide[tuple(part)]
        return window

    total = shifted(0) * kernel[radius]
    for by in range(radius, 0, -1):
        total += (shifted(-by) + shifted(by)) * kernel[radius - by]
    result: Array = total.astype(np.float32)
    return result


def blurred_and_resized(image: Array, height: int, width: int) -> Array:
    """Return a map resized linearly, blurred before if it becomes smaller; edges are mirrored.

    Args:
        image: float32, (rows, columns).
        height: New number of rows.
        width: New number of columns.
    """
    for axis, new in enumerate((height, width)):
        sigma = max(0.0, (image.shape[axis] / new - 1) / 2)
        if sigma > 1e-15:
            image = blurred(image, axis, sigma, mode="reflect")
    (rows, below, down), (columns, beside, right) = (
        _places(old, new) for old, new in zip(image.shape, (height, width), strict=True)
    )
    total = np.zeros((height, width))
    for lines, tall in ((rows, 1.0 - down), (below, down)):
        for taps, wide in ((columns, 1.0 - right), (beside, right)):
            total += image[lines][:, taps].astype(np.float64) * tall[:, None] * wide[None, :]
    return total.astype(np.float32)


def _places(old: int, new: int) -> tuple[Array, Array, Array]:
    """Return the old pixels before and after the centers of new ones, mirrored, and the share of the latter."""
    centers = (np.arange(new) + 0.5) * (old / new) - 0.5
    last = old - 1
    # Centers beyond the last place keep it as the first of two, as in scipy, whose sums have that order.
    centers = np.abs(centers) if last else np.zeros(new)
    first = np.floor(centers).astype(np.int64)
    after = first + 1
    after = np.where(after > last, np.maximum(2 * last - after, 0), after)
    return first, after, centers - first
