# SPDX-License-Identifier: Apache-2.0
"""Poses from heat maps, as `post_process_pose_estimation` of transformers' ViTPose processor computes them.

Each keypoint is the largest value of its map, refined by a Newton step on the logarithm of the blurred map.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.blurring import blurred
from qeff_zoo.media.families.vitpose import Box, center_and_scale
from qeff_zoo.runtime.program import Array

#: Standard deviation of the blur, and radius of its kernel, in pixels of a map.
_SIGMA, _RADIUS = 0.8, 5
_UNIT = np.float32(200)


@dataclass(frozen=True, kw_only=True)
class Keypoint:
    """Point of a body.

    Args:
        label: Name of the point.
        score: Largest value of its heat map.
        x: Distance from the left edge of the image in pixels.
        y: Distance from its upper edge in pixels.
    """

    label: str
    score: float
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Pose:
    """Keypoints of a person.

    Args:
        box: Box of the person: left and upper edge, width and height in pixels.
        keypoints: Points whose score exceeds the threshold, in the order of the labels.
    """

    box: Box
    keypoints: tuple[Keypoint, ...]


def poses_of(
    heatmaps: Array,
    boxes: Sequence[Box],
    size: tuple[int, int],
    *,
    labels: Sequence[str],
    threshold: float | None,
) -> tuple[Pose, ...]:
    """Return the poses of the people of an image.

    Args:
        heatmaps: Outputs of the model, (people, keypoints, rows, columns).
        boxes: Boxes of the people.
        size: Height and width of processed images.
        labels: Names of the keypoints.
        threshold: Score that keypoints exceed; None for all keypoints.

    Raises:
        GenerationError: The maps have values that are not finite.
    """
    if not np.isfinite(heatmaps).all():
        raise GenerationError(
            "The outputs of the model have values that are not finite; expected heat maps. Build the package with "
            "other options, such as float32 weights."
        )
    scores = heatmaps.max((2, 3))
    peaks = _refined(_peaks(heatmaps, scores), heatmaps)
    poses = []
    for box, person, values in zip(boxes, peaks, scores, strict=True):
        points = _in_image(person, box, size, heatmaps.shape[2:])
        rows = zip(labels, values, points, strict=True)
        keypoints = tuple(
            Keypoint(label=label, score=float(score), x=float(x), y=float(y))
            for label, score, (x, y) in rows
            if threshold is None or score > np.float32(threshold)
        )
        poses.append(Pose(box=box, keypoints=keypoints))
    return tuple(poses)


def _peaks(heatmaps: Array, scores: Array) -> Array:
    """Return the position of the maximum of each map, (people, keypoints, 2), x before y; -1 if none is positive."""
    best = heatmaps.reshape(*scores.shape, -1).argmax(2)
    columns = heatmaps.shape[3]
    peaks = np.stack([best % columns, best // columns], axis=2).astype(np.float32)
    return np.where(scores[..., None] > 0, peaks, np.float32(-1))


def _refined(peaks: Array, heatmaps: Array) -> Array:
    """Return positions after a Newton step towards the maximum of the blurred maps."""
    rows, columns = heatmaps.shape[2:]
    for axis in (2, 3):
        heatmaps = blurred(heatmaps, axis, _SIGMA, _RADIUS, mode="symmetric")
    logs = np.log(np.clip(heatmaps, 0.001, 50))
    flat = np.pad(logs, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge").ravel()
    line = columns + 2
    first = np.arange(math.prod(peaks.shape[:2])) * (rows + 2) * line
    x, y = peaks[..., 0].ravel(), peaks[..., 1].ravel()
    # Maps without a positive value have negative indices, which transformers reads from the map before.
    index = ((x + 1) + (y + 1) * line + first).astype(np.int64)

    def near(across: int, down: int) -> Array:
        shifted: Array = flat[index + across + down * line]
        return shifted

    middle = near(0, 0)
    slope = np.stack([near(1, 0) - near(-1, 0), near(0, 1) - near(0, -1)], axis=1) * np.float32(0.5)
    mixed = np.float32(0.5) * (
        near(1, 1)
        - near(1, 0)
        - near(0, 1)
        + middle
        + middle
        - near(-1, 0)
        - near(0, -1)
        + near(-1, -1)
    )
    curve = np.empty((len(index), 2, 2))
    curve[:, 0, 0] = near(1, 0) - 2 * middle + near(-1, 0)
    curve[:, 1, 1] = near(0, 1) - 2 * middle + near(0, -1)
    curve[:, 0, 1] = curve[:, 1, 0] = mixed
    inverse = np.linalg.inv(curve + np.finfo(np.float32).eps * np.eye(2))
    step = (inverse @ slope[..., None])[..., 0].reshape(peaks.shape)
    refined: Array = (peaks - step).astype(np.float32)
    return refined


def _in_image(places: Array, box: Box, size: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """Return positions in a map in pixels of the image, (keypoints, 2) float32."""
    center, scale = center_and_scale(box, *size)
    extent = scale * _UNIT
    steps = extent / np.array([shape[1] - 1, shape[0] - 1], np.float32)
    points: Array = places * steps + center - extent * np.float32(0.5)
    return points


def check_boxes(boxes: Sequence[Any]) -> list[Box]:
    """Return the boxes of an image.

    Args:
        boxes: Left and upper edge, width and height in pixels of each.

    Raises:
        GenerationError: There are none, or one has other values.
    """
    if not len(boxes):
        raise GenerationError(
            "An image has no boxes of people in []; expected at least one, or None for the whole image. Give one."
        )
    return [_checked(box) for box in boxes]


def _checked(box: Any) -> Box:
    try:
        left, top, width, height = (float(edge) for edge in box)
    except (TypeError, ValueError):
        left = top = width = height = math.nan
    if not (math.isfinite(left + top) and 0 < width < math.inf and 0 < height < math.inf):
        raise GenerationError(
            f"The box of a person is {box!r}; expected four numbers in pixels: left edge, upper edge, and width and "
            "height above 0. Correct it."
        )
    return left, top, width, height
