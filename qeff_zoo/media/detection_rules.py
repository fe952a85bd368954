# SPDX-License-Identifier: Apache-2.0
"""Rules of image processors of models of objects and masks, which keep aspect ratios and pad; see `image_rules`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import CheckpointError
from qeff_zoo.media.image_rules import Arrays, stacked
from qeff_zoo.media.images import Pixels
from qeff_zoo.media.pixels import (
    Settings,
    between_edges,
    numbers,
    padded,
    resize,
    resize_to_size,
    sides_of_size,
)

#: YOLOS rounds sides down to multiples of this, whatever the size of its patches.
_MULTIPLE = 16


def padded_wholes(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """DETR and its relatives: images between two edges or of one size, padded at the bottom and right.

    Returns:
        `pixel_values` (n, 3, height, width), and with `do_pad` `pixel_mask` (n, height, width), 1 within images.
    """
    return _padded(images, settings, _between(settings))


def padded_multiples(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """YOLOS: as `padded_wholes`, with sides between two edges rounded down to multiples of 16."""
    return _padded(images, settings, _between(settings), in_multiples=True)


def padded_multiples_above(images: Sequence[Pixels], settings: Settings) -> Arrays:
    """MaskFormer: as `padded_wholes` with padding, and sides rounded up to multiples of `size_divisor`."""
    sized, divisor, resized = _between(settings), settings["size_divisor"] or 1, []
    for image in images:
        if settings["do_resize"]:
            height, width = (
                math.ceil(side / divisor) * divisor for side in sides_of_size(image, sized)
            )
            image = resize(image, height, width, settings["resample"])
        resized.append(image)
    return _padded(resized, {**settings, "do_resize": False, "do_pad": True}, sized)


def _between(settings: Settings) -> dict[str, Any]:
    """Return settings whose `size` has both edges; old ones give the longest as `max_size`.

    Raises:
        CheckpointError: The size has one edge alone.
    """
    size = settings["size"]
    if "shortest_edge" in size and settings.get("max_size"):
        size = {"longest_edge": settings["max_size"], **size}
    if len(size) == 1:
        raise CheckpointError(
            f"Cannot process images: `size` is {size}. Expected shortest_edge and longest_edge, or height and width: "
            "transformers processes no images with one edge alone. Add the other to the processor's JSON."
        )
    return {**settings, "size": size}


def _padded(
    images: Sequence[Pixels], settings: Settings, sized: Settings, *, in_multiples: bool = False
) -> Arrays:
    arrays = []
    for image in images:
        if not settings["do_resize"]:
            resized = image
        elif in_multiples and "shortest_edge" in sized["size"]:
            resized = resize(image, *_multiples(image, sized), settings["resample"])
        else:
            resized = resize_to_size(image, sized)
        arrays.append(numbers(resized, settings))
    if not settings.get("do_pad"):
        return {"pixel_values": stacked(arrays)}
    masks = [np.ones(array.shape[1:], np.int64) for array in arrays]
    if size := settings.get("pad_size"):
        shape = size["height"], size["width"]
        _check_fits(arrays, shape)
        arrays = padded([*arrays, np.empty((3, *shape), arrays[0].dtype)])[:-1]
        masks = padded([*masks, np.empty(shape, np.int64)])[:-1]
    elif len({array.shape for array in arrays}) > 1:
        arrays, masks = padded(arrays), padded(masks)
    return {"pixel_values": stacked(arrays), "pixel_mask": stacked(masks)}


def _check_fits(arrays: Sequence[Any], shape: tuple[int, int]) -> None:
    for array in arrays:
        if any(side > most for side, most in zip(array.shape[1:], shape, strict=True)):
            raise CheckpointError(
                f"Cannot pad an image of {array.shape[2]} x {array.shape[1]} pixels to `pad_size`, {shape[1]} x "
                f"{shape[0]}. Expected a `pad_size` of at least `size`. Correct the processor's JSON."
            )


def _multiples(image: Pixels, settings: Settings) -> tuple[int, int]:
    """Return the height and width between two edges, rounded down to multiples of 16."""
    height, width = image.shape[:2]
    short, long = settings["size"]["shortest_edge"], settings["size"]["longest_edge"]
    exact: float = short
    if max(height, width) / min(height, width) * short > long:
        exact = long * float(min(height, width)) / max(height, width)
    if width < height and round(exact) == width:  # transformers computes the longer side anew
        sides = int(exact * height / width), width
    else:
        sides = between_edges(image, short, long)
    return sides[0] - sides[0] % _MULTIPLE, sides[1] - sides[1] % _MULTIPLE
