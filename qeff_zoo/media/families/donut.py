# SPDX-License-Identifier: Apache-2.0
"""Image processors of Donut and Nougat; see `qeff_zoo.media.image_rules`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_rules import Arrays
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import Settings, crop_to_size, numbers, resize, shortest_edge

_BICUBIC = 3


_GRAY = 200  # of 256; lighter pixels are margin


def page(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Donut: one array per page, (n, 3, height, width)."""
    return _pages(images, settings, {"resample": settings["resample"]})


def page_without_margin(images: Sequence[Pixels], settings: Mapping[str, Any]) -> Arrays:
    """Nougat: one array per page, after its margins are removed."""
    if settings["do_crop_margin"]:
        images = [_cropped(image) for image in images]
    return _pages(images, settings, {"resample": _BICUBIC, "reducing_gap": 2.0})


def _pages(images: Sequence[Pixels], settings: Settings, shrinking: Mapping[str, Any]) -> Arrays:
    pages = [_page(image, settings, shrinking) for image in images]
    shapes = {one.shape for one in pages}
    if len(shapes) > 1:
        raise MediaError(
            f"Cannot put {len(images)} pages into one array: they have the shapes {sorted(shapes)}. This processor "
            "does not pad them to one size. Give one at a time."
        )
    return {"pixel_values": np.stack(pages)}


def _page(image: Pixels, settings: Settings, shrinking: Mapping[str, Any]) -> Any:
    """Rotate, resize and pad a page, each if enabled, then rescale and normalize it.

    Args:
        image: A page of any size.
        settings: Settings of the processor.
        shrinking: Arguments of `resize` for a page that exceeds `size`.
    """
    height, width = settings["size"]["height"], settings["size"]["width"]
    if settings["do_align_long_axis"]:
        image = _turned(image, height, width)
    if settings["do_resize"]:
        image = resize(image, *shortest_edge(image, min(height, width)), settings["resample"])
    if settings["do_thumbnail"]:
        tall, wide = _within(image, height, width)
        if (tall, wide) != image.shape[:2]:
            image = resize(image, tall, wide, **shrinking)
    if settings["do_pad"]:
        image = _in_middle(image, height, width)
    return numbers(crop_to_size(image, settings), settings)


def _turned(image: Pixels, height: int, width: int) -> Pixels:
    """Rotate a page clockwise if it is landscape and `size` is portrait, or the other way around."""
    tall, wide = image.shape[:2]
    other = (width < height and wide > tall) or (width > height and wide < tall)
    return np.rot90(image, 3) if other else image


def _within(image: Pixels, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of a page that fits; the shorter side of a page that is not square is reduced."""
    own_height, own_width = image.shape[:2]
    tall, wide = min(own_height, height), min(own_width, width)
    if (tall, wide) == (own_height, own_width):
        return tall, wide
    if own_height > own_width:
        wide = int(own_width * tall / own_height)
    elif own_width > own_height:
        tall = int(own_height * wide / own_width)
    return tall, wide


def _in_middle(image: Pixels, height: int, width: int) -> Pixels:
    """Center a page on a black canvas."""
    down, right = height - image.shape[0], width - image.shape[1]
    if min(down, right) < 0:
        raise MediaError(
            f"A page of {image.shape[1]} x {image.shape[0]} pixels cannot be padded to {width} x {height}, which is "
            "smaller. Expected `do_thumbnail`, which shortens it. Correct the processor's JSON."
        )
    top, left = down // 2, right // 2
    return np.pad(image, [(top, down - top), (left, right - left), (0, 0)])


def _cropped(image: Pixels) -> Pixels:
    """Crop the margins, which are lighter than print."""
    from PIL import Image

    gray = np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("L"))
    darkest, lightest = gray.min(), gray.max()
    if darkest == lightest:
        return image
    print_ = (gray - darkest) / (lightest - darkest) * 255 < _GRAY
    rows, columns = (np.flatnonzero(print_.any(axis)) for axis in (1, 0))
    return image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
