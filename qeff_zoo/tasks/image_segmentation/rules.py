# SPDX-License-Identifier: Apache-2.0
"""Segments from a model's outputs, as the methods `post_process_…_segmentation` of transformers' processors do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from qeff_zoo.media.interpolation import nearest_lines, resized_bands
from qeff_zoo.runtime.activations import sigmoid, softmax
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.image_segmentation.segments import SUBTASKS, Thresholds

#: Number, label and score of a segment.
Found: TypeAlias = tuple[int, int, float | None]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Outputs of a model for an image.

    Args:
        maps: Logits of each label at each pixel, (labels, rows, columns); or logits of the mask of each query,
            (queries, rows, columns).
        classes: Logits of the labels of each query, (queries, labels + 1), the last for "no object"; None of a model
            without queries.
    """

    maps: Array
    classes: Array | None = None


#: Function from outputs, height and width of the image, and thresholds to a map of numbers and the segments.
Rule: TypeAlias = Callable[[Outputs, tuple[int, int], Thresholds], tuple[Array, list[Found]]]


def _likeliest(maps: Array, size: tuple[int, int]) -> Array:
    """Return the number of the largest of the maps at each pixel of an image."""
    best = np.empty(size, np.int32)
    for band, values in resized_bands(maps, *size):
        best[band] = values.argmax(0)
    return best


def _labelled(maps: Array, size: tuple[int, int]) -> tuple[Array, list[Found]]:
    """Return the label of each pixel, and a segment for each label, in their order."""
    labels = _likeliest(maps, size)
    return labels, [(int(label), int(label), None) for label in np.unique(labels)]


def _of_pixels(
    outputs: Outputs, size: tuple[int, int], thresholds: Thresholds
) -> tuple[Array, list[Found]]:
    """Return the likeliest label of each pixel."""
    return _labelled(outputs.maps, size)


def _semantic(
    outputs: Outputs,
    size: tuple[int, int],
    thresholds: Thresholds,
    *,
    within: tuple[int, int] | None = None,
) -> tuple[Array, list[Found]]:
    """Return the label of each pixel with the largest sum over queries.

    Args:
        outputs: Outputs for the image.
        size: Height and width of the image.
        thresholds: Unused.
        within: Size to which masks are resized before; None for that of the model.
    """
    assert outputs.classes is not None
    shares = softmax(outputs.classes)[:, :-1]
    masks = sigmoid(_resized(outputs.maps, within))
    maps = np.einsum("qc,qhw->chw", shares, masks, optimize=True)
    return _labelled(maps, size)


def _panoptic(
    outputs: Outputs,
    size: tuple[int, int],
    thresholds: Thresholds,
    *,
    within: tuple[int, int] | None = None,
) -> tuple[Array, list[Found]]:
    """Return segments without overlaps: each pixel belongs to the query with the largest share and score.

    Args:
        outputs: Outputs for the image.
        size: Height and width of the image.
        thresholds: Thresholds of segments.
        within: Size to which masks are resized before; None for that of the model.
    """
    assert outputs.classes is not None
    shares = softmax(outputs.classes)
    labels, scores = shares.argmax(1), shares.max(1)
    kept = (labels != shares.shape[1] - 1) & (scores > np.float32(thresholds.threshold))
    labels, scores = labels[kept], scores[kept]
    segmentation, segments = np.zeros(size, np.int32), list[Found]()
    if not kept.any():
        return segmentation - 1, segments
    masks = sigmoid(_resized(outputs.maps[kept], within))
    best, areas = np.empty(size, np.int32), np.zeros(len(masks), np.int64)
    for band, values in resized_bands(masks, *size):
        values *= scores[:, None, None]
        areas += np.count_nonzero(values >= np.float32(thresholds.mask_threshold), axis=(1, 2))
        best[band] = values.argmax(0)
    taken = np.bincount(best.ravel(), minlength=len(masks))
    for query, (own, whole) in enumerate(zip(taken, areas, strict=True)):
        if own and whole and np.float32(own / whole) > thresholds.overlap_mask_area_threshold:
            number = len(segments) + 1
            segmentation[best == query] = number
            segments.append((number, int(labels[query]), round(float(scores[query]), 6)))
    return segmentation, segments


def _instances(
    outputs: Outputs,
    size: tuple[int, int],
    thresholds: Thresholds,
    *,
    within: tuple[int, int] | None = None,
) -> tuple[Array, list[Found]]:
    """Return instances of as many pairs of a query and a label as there are queries, the best first.

    A pixel of several instances belongs to the last of them.

    Args:
        outputs: Outputs for the image.
        size: Height and width of the image.
        thresholds: Thresholds of segments.
        within: Size to which masks are resized before; None for that of the model.
    """
    assert outputs.classes is not None
    shares = softmax(outputs.classes)[:, :-1]
    pairs = np.argsort(-shares.ravel(), kind="stable")[: len(shares)]
    queries, labels = np.divmod(pairs, shares.shape[1])
    maps = _resized(outputs.maps, within)
    insides = maps > 0
    sums = np.where(insides, sigmoid(maps), 0).sum((1, 2), dtype=np.float32)
    means = sums / (np.count_nonzero(insides, axis=(1, 2)).astype(np.float32) + np.float32(1e-6))
    scores = shares.ravel()[pairs] * means[queries]
    rows, columns = (nearest_lines(old, new) for old, new in zip(maps.shape[1:], size, strict=True))
    segmentation, instances = np.full(size, -1, np.int32), list[Found]()
    for query, label, score in zip(queries, labels, scores, strict=True):
        if float(score) < thresholds.threshold:
            continue
        inside = insides[query][rows[:, None], columns]
        if inside.any():
            segmentation[inside] = len(instances)
            instances.append((len(instances), int(label), round(float(score), 6)))
    return segmentation, instances


def _resized(maps: Array, size: tuple[int, int] | None) -> Array:
    if size is None or maps.shape[1:] == size:
        return maps
    resized = np.empty((len(maps), *size), np.float32)
    for band, values in resized_bands(maps, *size):
        resized[:, band] = values
    return resized


_PIXELS: Mapping[str, Rule] = {"semantic": _of_pixels}
_QUERIES = {
    "panoptic": _panoptic,
    "instance": _instances,
    "semantic": _semantic,
}
#: Size to which Mask2Former's processor resizes masks.
_SQUARE = (384, 384)
#: Rules by kind, by transformers' class of the processor, whose methods they equal.
RULES: Mapping[str, Mapping[str, Rule]] = {
    **dict.fromkeys(
        (
            *("BeitImageProcessor", "DPTImageProcessor", "MobileNetV2ImageProcessor"),
            *("MobileViTImageProcessor", "SegformerImageProcessor"),
        ),
        _PIXELS,
    ),
    "MaskFormerImageProcessor": _QUERIES,
    "Mask2FormerImageProcessor": {
        name: partial(rule, within=_SQUARE) for name, rule in _QUERIES.items()
    },
}


def subtasks_of(processor: str) -> tuple[str, ...]:
    """Return the kinds of segmentation that a processor supports, in the order of preference.

    Args:
        processor: Class of the image processor, one of `RULES`.
    """
    return tuple(subtask for subtask in SUBTASKS if subtask in RULES[processor])


def has_queries(processor: str) -> bool:
    """Return whether the models of a processor have queries, each with a label and a mask."""
    return RULES[processor] is not _PIXELS
