# SPDX-License-Identifier: Apache-2.0
"""Segments of an image: a map of their numbers, their labels and scores, with the masks of transformers' pipeline."""

import math
from dataclasses import dataclass, fields
from io import BytesIO
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array

#: Kinds of segmentation, in the order in which transformers' pipeline prefers them.
SUBTASKS = ("panoptic", "instance", "semantic")


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of segments, with the names and the defaults of transformers' pipeline; semantic ones have none.

    Args:
        threshold: Score that segments exceed.
        mask_threshold: Probability from which on a pixel belongs to the mask of a query.
        overlap_mask_area_threshold: Share of the mask that a segment exceeds after better segments took their pixels.

    Raises:
        GenerationError: A threshold is no number from 0 to 1.
    """

    threshold: float = 0.9
    mask_threshold: float = 0.5
    overlap_mask_area_threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check the thresholds."""
        for field in fields(self):
            value: Any = getattr(self, field.name)
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not is_number or math.isnan(value) or not 0 <= value <= 1:
                raise GenerationError(
                    f"The {field.name} is {value!r}; expected a number from 0 to 1. Correct it, or leave it out for "
                    f"{field.default}."
                )


#: Thresholds of a call without any.
THRESHOLDS = Thresholds()


@dataclass(frozen=True, kw_only=True)
class ImageSegment:
    """Segment of an image; `score`, `label` and `mask` are the keys of transformers' pipeline.

    Args:
        score: Probability of the label; None for semantic segments, which have none.
        label: Name of the label.
        number: Value of its pixels in `segmentation`.
        segmentation: Numbers of the segments, (height, width) of the image; the segments of an image share it.
    """

    score: float | None
    label: str
    number: int
    segmentation: Array

    @property
    def mask(self) -> Array:
        """Mask, uint8, (height, width) of the image: 255 within the segment, else 0."""
        return np.where(self.segmentation == self.number, np.uint8(255), np.uint8(0))

    def as_png(self) -> bytes:
        """Return the mask as a PNG file, compressed in a third of the time of Pillow's default."""
        from PIL import Image

        file = BytesIO()
        Image.fromarray(self.mask).save(file, "PNG", compress_level=1)
        return file.getvalue()


def check_subtask(subtask: str | None, supported: tuple[str, ...]) -> str:
    """Return the kind of segmentation.

    Args:
        subtask: Requested kind; None for the first supported one.
        supported: Kinds that a model supports, the preferred one first.

    Raises:
        GenerationError: The kind is not supported.
    """
    if subtask is None:
        return supported[0]
    if subtask not in supported:
        raise GenerationError(
            f"The subtask is {subtask!r}; expected {' or '.join(supported)}, if the model supports it. Choose one, or "
            "leave it out for the first that the model supports."
        )
    return subtask
