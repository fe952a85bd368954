# SPDX-License-Identifier: Apache-2.0
"""Detected objects: scores, labels and boxes from a model's outputs, as transformers' processors compute them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.activations import sigmoid, softmax
from qeff_zoo.runtime.program import Array

#: Minimum score of a detected object, as in transformers' pipeline.
THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class Box:
    """Box around an object, in whole pixels of the image; a model may place edges beyond the image's.

    Args:
        xmin: Left edge.
        ymin: Upper edge.
        xmax: Right edge.
        ymax: Lower edge.
    """

    xmin: int
    ymin: int
    xmax: int
    ymax: int


@dataclass(frozen=True, kw_only=True)
class Detection:
    """Detected object; its fields are the keys of transformers' pipeline.

    Args:
        score: Probability of the label.
        label: Name of the label.
        box: Box around the object.
    """

    score: float
    label: str
    box: Box


#: Scores, numbers of labels and numbers of queries of candidates, from the logits (queries, labels).
Candidates: TypeAlias = tuple[Array, Array, Array]


def _likeliest(logits: Array) -> Candidates:
    """Return the likeliest label of each query; the last label is "no object"."""
    shares = softmax(logits)[:, :-1]
    labels = shares.argmax(1)
    queries = np.arange(len(logits))
    return shares[queries, labels], labels, queries


def _best(logits: Array, *, most: int | None = None) -> Candidates:
    """Return the best pairs of a query and a label, in descending order: as many as queries, or the given number."""
    shares = sigmoid(logits).ravel()
    pairs = np.argsort(-shares, kind="stable")[: most or len(logits)]
    return shares[pairs], pairs % logits.shape[1], pairs // logits.shape[1]


#: Function that returns candidates, by transformers' class of the processor, whose method it equals.
RULES: Mapping[str, Callable[[Array], Candidates]] = {
    "ConditionalDetrImageProcessor": partial(_best, most=100),
    "DeformableDetrImageProcessor": partial(_best, most=100),
    "DetrImageProcessor": _likeliest,
    "RTDetrImageProcessor": _best,
    "YolosImageProcessor": _likeliest,
}


def has_no_object(processor: str) -> bool:
    """Return whether the logits of a processor's models have one more label, "no object"."""
    return RULES[processor] is _likeliest


def detections_of(
    logits: Array,
    boxes: Array,
    size: tuple[int, int],
    *,
    processor: str,
    labels: Sequence[str],
    threshold: float,
) -> tuple[Detection, ...]:
    """Return the objects of an image whose score exceeds a threshold.

    Args:
        logits: Logits of the labels, (queries, labels).
        boxes: Boxes of the queries: center, width and height in shares of the image, (queries, 4).
        size: Height and width of the image.
        processor: Class of the image processor.
        labels: Names of the labels.
        threshold: Score that objects exceed.

    Raises:
        GenerationError: The outputs have numbers that are not finite.
    """
    if not (np.isfinite(logits).all() and np.isfinite(boxes).all()):
        raise GenerationError(
            "The outputs of the model have numbers that are not finite; expected logits and boxes. Build the package "
            "with other options, such as float32 weights."
        )
    scores, numbers, queries = RULES[processor](logits)
    kept = scores > np.float32(threshold)
    corners = _corners(boxes[queries[kept]], *size)
    return tuple(
        Detection(score=float(score), label=labels[number], box=Box(**edges))
        for score, number, edges in zip(scores[kept], numbers[kept], corners, strict=True)
    )


def _corners(boxes: Array, height: int, width: int) -> list[dict[str, int]]:
    """Return the edges of boxes in whole pixels, rounded towards zero."""
    middle, half = boxes[:, :2], np.float32(0.5) * boxes[:, 2:]
    scale = np.array([width, height, width, height], np.float32)
    edges = np.concatenate([middle - half, middle + half], axis=1) * scale
    return [
        dict(zip(("xmin", "ymin", "xmax", "ymax"), one, strict=True))
        for one in edges.astype(np.int32).tolist()
    ]


def check_threshold(threshold: Any) -> float:
    """Return a threshold.

    Args:
        threshold: Number from 0 to 1.

    Raises:
        GenerationError: It is another value.
    """
    is_number = isinstance(threshold, int | float | np.number) and not isinstance(threshold, bool)
    if not is_number or math.isnan(threshold) or not 0 <= threshold <= 1:
        raise GenerationError(
            f"The threshold is {threshold!r}; expected a number from 0 to 1, the score that detected objects exceed. "
            f"Correct it, or leave it out for {THRESHOLD}."
        )
    return float(threshold)
