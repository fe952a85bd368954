# SPDX-License-Identifier: Apache-2.0
"""Image resizing with PyTorch's results, without torch, for processors that need transformers' torchvision backend.

Bytes are resized with antialiasing, in integers, or without it; floats with it, or bicubically without it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.images import LIMITS, Pixels, blank, is_blank

Array = NDArray[Any]

_CUBIC = -0.75  # PyTorch's cubic coefficient
_SOFTER = -0.5  # the same with antialiasing
_MOST_BITS = 22
_SLAB = 1 << 20  # values resized at a time


def resize_bytes(image: Pixels, height: int, width: int, *, cubic: bool = False) -> Pixels:
    """Resize (height, width, 3) with antialiasing, first its columns, then its rows.

    Args:
        image: Pixels to resize.
        height: New height.
        width: New width.
        cubic: Whether interpolation is bicubic; else it is bilinear.
    """
    if is_blank(image):
        return blank(height, width)
    for axis, new in ((1, width), (0, height)):
        old = image.shape[axis]
        if new != old:
            weights = _whole_weights(old, new, cubic=cubic)
            image = _along(image, axis, new, np.uint8, partial(_weighed, *weights))
    return np.ascontiguousarray(image)


def resize_shares(image: Array, height: int, width: int, *, cubic: bool = False) -> Array:
    """Resize (height, width, channels) of float32 with antialiasing, first its columns, then its rows."""
    for axis, new in ((1, width), (0, height)):
        old = image.shape[axis]
        if new != old:
            weigh = partial(_weighed_numbers, *_shares(old, new, np.float32, cubic=cubic))
            image = _along(image, axis, new, np.float32, weigh)
    return np.ascontiguousarray(image)


def _along(image: Array, axis: int, new: int, dtype: Any, weigh: Callable[[Array], Array]) -> Array:
    """Resize one axis of an image by a function of lines, (old lines, values), part by part."""
    old = image.shape[axis]
    lines = np.moveaxis(image, axis, 0).reshape(old, -1)
    resized, some = np.empty((new, lines.shape[1]), dtype), max(1, _SLAB // old)
    for start in range(0, lines.shape[1], some):  # int32 takes four times the memory of bytes
        resized[:, start : start + some] = weigh(lines[:, start : start + some])
    shape = (new, *(size for place, size in enumerate(image.shape) if place != axis))
    return np.moveaxis(resized.reshape(shape), 0, axis)


def _weighed(first: Array, weights: Array, bits: int, lines: Array) -> Array:
    """Return weighted sums of lines, rounded to bytes: (new lines, values)."""
    lines = lines.astype(np.int32)
    sums = np.full((len(first), lines.shape[1]), 1 << (bits - 1), np.int32)
    for tap in range(weights.shape[1]):
        at = np.minimum(first + tap, len(lines) - 1)  # beyond the last line the weight is 0
        sums += weights[:, tap : tap + 1] * lines[at]
    rounded: Array = np.clip(sums >> bits, 0, 255).astype(np.uint8)
    return rounded


def _weighed_numbers(first: Array, weights: Array, lines: Array) -> Array:
    """Return weighted sums of lines of float32: (new lines, values)."""
    sums = np.zeros((len(first), lines.shape[1]), np.float32)
    for tap in range(weights.shape[1]):
        sums += weights[:, tap : tap + 1] * lines[np.minimum(first + tap, len(lines) - 1)]
    return sums


def _shares(
    old: int, new: int, dtype: Any = np.float64, *, cubic: bool = False
) -> tuple[Array, Array]:
    """Return the first tap of each new line, and the weights of its taps, whose sum is 1."""
    scale = dtype(old) / dtype(new)
    step = max(scale, dtype(1))
    wide = step * (2 if cubic else 1)
    middle = scale * (np.arange(new, dtype=dtype) + dtype(0.5))
    first = np.maximum((middle - wide + 0.5).astype(np.int64), 0)
    end = np.minimum((middle + wide + 0.5).astype(np.int64), old)
    taps = np.arange(int((end - first).max()))
    positions = (taps + first[:, None]).astype(dtype)
    distance = np.abs((positions - middle[:, None] + dtype(0.5)) / step)
    shares = _cubic_shares(distance) if cubic else np.maximum(1 - distance, 0)
    weights = np.where(taps < (end - first)[:, None], shares, 0)
    return first, weights / weights.sum(1, keepdims=True)


def _whole_weights(old: int, new: int, *, cubic: bool) -> tuple[Array, Array, int]:
    """Return the first tap of each new line, integer weights of its taps, and the bits of their fraction."""
    first, weights = _shares(old, new, cubic=cubic)
    largest, bits = weights.max(), 0
    while bits < _MOST_BITS and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    whole = weights * (1 << bits)
    return first, (whole + np.copysign(0.5, whole)).astype(np.int32), bits


def _cubic_shares(distance: Array) -> Array:
    """Return the weights of lines at these distances, with antialiasing: two on either side."""
    near, far = _near(distance, _SOFTER), _far(distance, _SOFTER)
    shares: Array = np.where(distance < 1, near, np.where(distance < 2, far, 0))
    return shares


def resize_numbers(image: Array, height: int, width: int) -> Array:
    """Resize (colors, height, width) of float32 bicubically, each value from the sixteen around it."""
    (rows, down), (columns, right) = (
        _cubic_taps(old, new) for old, new in zip(image.shape[1:], (height, width), strict=True)
    )
    across = np.zeros((*image.shape[:2], width), np.float32)
    for column, weight in zip(columns, right, strict=True):
        across += image[:, :, column] * weight
    sums = np.zeros((len(image), height, width), np.float32)
    for row, share in zip(rows, down, strict=True):
        lines = across[:, row]
        lines *= share[:, None]
        sums += lines
    return sums


def _cubic_taps(old: int, new: int) -> tuple[Array, Array]:
    """Return for each new line the four source lines and their weights, both (4, new)."""
    # PyTorch has only float32 precision in the scale and the positions; the rest is rounded once, as on a processor.
    scale = float(np.float32(old) / np.float32(new))
    at = (scale * (np.arange(new) + 0.5) - 0.5).astype(np.float32).astype(np.float64)
    whole = np.floor(at)
    t = at - whole
    positions = np.clip(whole.astype(np.int64) + np.arange(-1, 3)[:, None], 0, old - 1)
    weights = np.stack([_far(1 + t), _near(t), _near(1 - t), _far(2 - t)])
    return positions, weights.astype(np.float32)


def _near(x: Array, sharp: float = _CUBIC) -> Array:
    weights: Array = ((sharp + 2) * x - (sharp + 3)) * x * x + 1
    return weights


def _far(x: Array, sharp: float = _CUBIC) -> Array:
    weights: Array = sharp * (((x - 5) * x + 8) * x - 4)
    return weights


def resize_aliased(image: Pixels, height: int, width: int) -> Pixels:
    """Resize bilinearly between the four nearest pixels without antialiasing, as PyTorch does; then round.

    Raises:
        MediaError: If the result would have too many pixels.
    """
    if height * width > LIMITS.pixels:
        raise MediaError(
            f"Cannot resize an image of {image.shape[1]} x {image.shape[0]} pixels to {width} x {height}. Expected at "
            f"most {LIMITS.pixels:,} pixels. Correct the processor's JSON."
        )
    rows, columns = (
        _around(old, new) for old, new in zip(image.shape[:2], (height, width), strict=True)
    )
    return np.rint(_between(image, rows, columns)).astype(np.uint8)


def resize_corners(image: Array, height: int, width: int) -> Array:
    """Resize (colors, height, width) of float32 bilinearly, as PyTorch does with `align_corners`."""
    rows, columns = (
        _around_corners(old, new) for old, new in zip(image.shape[1:], (height, width), strict=True)
    )
    resized = _between(image.transpose(1, 2, 0), rows, columns)
    return np.ascontiguousarray(resized.transpose(2, 0, 1))


def resized_bands(
    maps: Array, height: int, width: int
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Resize (maps, rows, columns) of float32 bilinearly, as PyTorch does, band by band of the result.

    Args:
        maps: Maps of one size.
        height: New height.
        width: New width.

    Yields:
        The rows of a band, and its values, (maps, some rows, width), which the caller may change.
    """
    (tops, bottoms, down), (lefts, rights, right) = (
        _around(old, new) for old, new in zip(maps.shape[1:], (height, width), strict=True)
    )
    step = max(1, _SLAB // (len(maps) * width))
    for start in range(0, height, step):
        band = slice(start, min(start + step, height))
        first, last = tops[band][0], bottoms[band][-1] + 1
        lines = maps[:, first:last]
        across = lines[:, :, lefts] * (1 - right) + lines[:, :, rights] * right
        share = down[band, None]
        values = across[:, tops[band] - first] * (1 - share)
        values += across[:, bottoms[band] - first] * share
        yield band, values.astype(np.float32, copy=False)


def nearest_lines(old: int, new: int) -> NDArray[np.int64]:
    """Return the old line of each new one on an axis that is resized without interpolation, as PyTorch does."""
    if new == 2 * old:
        return np.arange(new) // 2
    scale = np.float32(old) / np.float32(new)
    lines = np.floor(np.arange(new, dtype=np.float32) * scale).astype(np.int64)
    limited: NDArray[np.int64] = np.minimum(lines, old - 1)
    return limited


def _between(image: Array, rows: "_Taps", columns: "_Taps") -> NDArray[np.float32]:
    """Return (height, width, colors): sums of the four nearest pixels."""
    (tops, bottoms, down), (lefts, rights, right) = rows, columns
    left, up = 1 - right, 1 - down
    values = np.zeros((len(tops), len(lefts), image.shape[2]), np.float32)
    # The order of PyTorch's sums in one thread, with unrounded products, decides the last bit. With more threads
    # PyTorch differs.
    for y, x, tall, wide in (
        (tops, rights, up, right),
        (tops, lefts, up, left),
        (bottoms, lefts, down, left),
        (bottoms, rights, down, right),
    ):
        weights = (tall[:, None] * wide)[:, :, None].astype(np.float64)
        values = (weights * image[y[:, None], x] + values).astype(np.float32)
    return values


#: For each new position on an axis the two old positions around it, and the weight of the second.
_Taps: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]


def _around_corners(old: int, new: int) -> _Taps:
    """Return the taps of an axis whose first and last positions are those of the old."""
    scale = np.float32(old - 1) / np.float32(new - 1) if new > 1 else np.float32(0)
    at = (scale * np.arange(new, dtype=np.float32)).astype(np.float32)
    first = np.minimum(at.astype(np.int64), old - 1)
    return first, np.minimum(first + 1, old - 1), np.clip(at - first.astype(np.float32), 0, 1)


def _around(old: int, new: int) -> _Taps:
    """Return the taps of an axis."""
    scale = np.float64(np.float32(old) / np.float32(new))
    at = np.maximum((scale * (np.arange(new) + 0.5) - 0.5).astype(np.float32), np.float32(0))
    first = np.minimum(at.astype(np.int64), old - 1)
    return first, np.minimum(first + 1, old - 1), np.clip(at - first.astype(np.float32), 0, 1)
