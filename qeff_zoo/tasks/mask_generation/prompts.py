# SPDX-License-Identifier: Apache-2.0
"""Prompts of masks: points and a box, and the tokens that a model reads for them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: Labels of tokens: the end of points, a point outside or inside the object, and the corners of a box.
END, OUTSIDE, INSIDE, UPPER, LOWER = -1, 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class MaskPrompt:
    """What shows an object: points, a box, or both.

    Args:
        points: Distances of points from the left and the upper edge of the image in pixels.
        labels: Whether each point is inside the object; None for all.
        box: Left and upper edge, width and height of a box around the object in pixels.
    """

    points: Sequence[tuple[float, float]] = ()
    labels: Sequence[bool] | None = None
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class GeneratedMask:
    """Mask of an object.

    Args:
        mask: bool, (height, width) of the image.
        score: Estimate of the model of the mask's overlap with the object.
    """

    mask: Array
    score: float

    def as_png(self) -> bytes:
        """Return the mask as a PNG file, 255 within the object."""
        from io import BytesIO

        from PIL import Image

        file = BytesIO()
        Image.fromarray(self.mask.astype(np.uint8) * 255).save(file, "PNG", compress_level=1)
        return file.getvalue()


def check_prompts(prompts: Sequence[MaskPrompt]) -> list[MaskPrompt]:
    """Return prompts.

    Args:
        prompts: Prompts of an image.

    Raises:
        GenerationError: There are none, or one has neither points nor a box, or values out of their range.
    """
    if not len(prompts):
        raise GenerationError(
            "There are no prompts in []; expected at least one with points or a box that show an object. Give one."
        )
    for prompt in prompts:
        _check(prompt)
    return [*prompts]


def _check(prompt: MaskPrompt) -> None:
    labels = [True] * len(prompt.points) if prompt.labels is None else [*prompt.labels]
    try:
        numbers = [float(coordinate) for point in prompt.points for coordinate in point]
        box = [float(one) for one in prompt.box or ()]
    except (TypeError, ValueError):
        numbers, box = [math.nan], []
    right = (
        (prompt.points or box)
        and len(numbers) == 2 * len(prompt.points)
        and len(labels) == len(prompt.points)
        and all(label in (0, 1) for label in labels)
        and all(map(math.isfinite, [*numbers, *box]))
        and (not box or (len(box) == 4 and min(box[2:]) > 0))
    )
    if not right:
        raise GenerationError(
            f"The prompt is {prompt!r}; expected points of two numbers in pixels, with as many labels or None, or a "
            "box: left edge, upper edge, and width and height above 0. Correct it."
        )


def tokens_of(prompt: MaskPrompt, scale: tuple[float, float]) -> tuple[Array, Array]:
    """Return the coordinates, (tokens, 2) float32, and the labels of tokens, (tokens,) int64.

    Args:
        prompt: Checked prompt.
        scale: Factors from pixels of the image to those of the processed image, of x and of y.
    """
    labels = prompt.labels if prompt.labels is not None else [True] * len(prompt.points)
    points = [*prompt.points]
    kinds = [INSIDE if inside else OUTSIDE for inside in labels]
    if prompt.box is None:
        points, kinds = [*points, (0.0, 0.0)], [*kinds, END]
    else:
        left, top, width, height = prompt.box
        points, kinds = [*points, (left, top), (left + width, top + height)], [*kinds, UPPER, LOWER]
    scaled = np.array(points, np.float64) * scale
    return scaled.astype(np.float32), np.array(kinds, np.int64)
