# SPDX-License-Identifier: Apache-2.0
"""Objects that texts name: scores and boxes from a model's outputs, as transformers' pipeline and processors do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.object_detection.boxes import Detection, detections_of

#: Minimum score of a detected object, as in transformers' pipeline.
THRESHOLD = 0.1
#: Whether a processor pads images to squares before it resizes them, by transformers' class.
PADDED: Mapping[str, bool] = {"OwlViTImageProcessor": False, "Owlv2ImageProcessor": True}


def objects_of(
    logits: Array,
    boxes: Array,
    size: tuple[int, int],
    *,
    processor: str,
    labels: Sequence[str],
    threshold: float,
    one_label: bool,
) -> tuple[Detection, ...]:
    """Return the objects of an image whose score exceeds a threshold, the best first.

    Args:
        logits: Logits of the labels, (patches, labels).
        boxes: Boxes of the patches: center, width and height in shares of the processed image, (patches, 4).
        size: Height and width of the image.
        processor: Class of the image processor.
        labels: Texts of the labels.
        threshold: Score that objects exceed.
        one_label: Whether a patch has its best label alone.

    Raises:
        GenerationError: The outputs have numbers that are not finite.
    """
    if PADDED[processor]:
        size = (max(size), max(size))
    if one_label:
        best = logits == logits.max(1, keepdims=True)
        first = np.arange(logits.shape[1]) == best.argmax(1)[:, None]
        logits = np.where(first, logits, np.float32(-1e30))
    objects = [
        replace(one, label=label)
        for number, label in enumerate(labels)
        for one in detections_of(
            logits[:, number : number + 1],
            boxes,
            size,
            processor="RTDetrImageProcessor",  # a sigmoid of each logit
            labels=[label],
            threshold=threshold,
        )
    ]
    return tuple(sorted(objects, key=lambda one: -one.score))


def check_labels(labels: Sequence[str]) -> list[str]:
    """Return the texts of labels.

    Args:
        labels: Texts that name objects.

    Raises:
        GenerationError: There are none, or one is no text.
    """
    texts = [labels] if isinstance(labels, str) else [*labels]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise GenerationError(
            f"The labels are {labels!r}; expected at least one text that names objects, such as 'a cat'. Give one."
        )
    return texts
