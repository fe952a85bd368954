# SPDX-License-Identifier: Apache-2.0
"""Session of an image segmentation package: images in, segments with labels and masks out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract import IMAGE_SEGMENTATION
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.tasks.image_segmentation.rules import RULES, Outputs, has_queries, subtasks_of
from qeff_zoo.tasks.image_segmentation.segments import (
    THRESHOLDS,
    ImageSegment,
    Thresholds,
    check_subtask,
)
from qeff_zoo.tasks.images.session import ImageSession

_MASKS = "pred_masks"


class ImageSegmentationSession(ImageSession):
    """An opened package of the task `image-segmentation`; see `ImageSession` for how to open it.

    Raises:
        GenerationError: The labels do not fit the graph; or an error of the base class.

    Example:
        >>> session = qeff_zoo.load("packages/segformer-b0-finetuned-ade-512-512")  # doctest: +SKIP
        >>> [one.label for one in session.segment(["street.jpg"])[0]]  # doctest: +SKIP
        ['building', 'sky', 'road']
    """

    task = IMAGE_SEGMENTATION
    output = "logits"

    def __init__(self, folder: Path, program: Program, **given: Any) -> None:
        super().__init__(folder, program, **given)
        #: Whether the model has queries, each with a label and a mask.
        self.queries = has_queries(self.processor.name)
        shape = program.outputs[self.output].shape
        if self.queries:
            require(program, folder, self.task, {"pixel_values"}, {self.output, _MASKS})
        self.labels = labels.names_of(
            self.config, int(shape[2]) - 1 if self.queries else int(shape[1])
        )
        #: Kinds of segmentation, the default first.
        self.subtasks = subtasks_of(self.processor.name)

    def run(self, pixels: Array) -> Array:
        """Run as many calls as needed, without unused rows.

        Args:
            pixels: float32, (images, 3, height, width).

        Returns:
            float32, (images, labels or queries, rows, columns): logits of labels or masks. Of a model with queries,
            the first rows are those of `packed`.
        """
        answers = []
        for start, stop in self.calls(len(pixels)):
            feeds = {"pixel_values": np.ascontiguousarray(pixels[start:stop])}
            outputs = self._program.run(feeds)
            logits = outputs[self.output].astype(np.float32, copy=False)
            answers.append(packed(outputs[_MASKS], logits) if self.queries else logits)
        return np.concatenate(answers)

    def outputs_of(self, output: Array) -> Outputs:
        """Return the outputs of the graph for an image from a row of `run`.

        Raises:
            GenerationError: They have numbers that are not finite.
        """
        if not np.isfinite(output).all():
            raise GenerationError(
                "The outputs of the model have numbers that are not finite; expected logits. Build the package with "
                "other options, such as float32 weights."
            )
        if not self.queries:
            return Outputs(maps=output)
        classes, maps = unpacked(output, len(self.labels) + 1)
        return Outputs(maps=maps, classes=classes)

    def segment(
        self,
        images: ImageSource | Sequence[ImageSource],
        subtask: str | None = None,
        thresholds: Thresholds = THRESHOLDS,
        limits: ImageLimits = LIMITS,
    ) -> list[tuple[ImageSegment, ...]]:
        """Return the segments of each image; adjacent images of one size share calls. See `prepare`.

        Args:
            images: Images, see `prepare`.
            subtask: Kind of segmentation, one of `subtasks`; None for the first.
            thresholds: Thresholds of segments.
            limits: Limits of each image.

        Raises:
            GenerationError: There are no images, or the model does not support the subtask.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        check_subtask(subtask, self.subtasks)
        return [
            self.segments_of(output, size, subtask, thresholds)
            for output, size in self.answers(images, limits)
        ]

    def segments_of(
        self,
        output: Array,
        size: tuple[int, int],
        subtask: str | None = None,
        thresholds: Thresholds = THRESHOLDS,
    ) -> tuple[ImageSegment, ...]:
        """Return the segments of an image from a row of `run`.

        Args:
            output: Logits, see `run`.
            size: Height and width of the image.
            subtask: Kind of segmentation, one of `subtasks`; None for the first.
            thresholds: Thresholds of segments.

        Raises:
            GenerationError: The model does not support the subtask, or the outputs are not finite.
        """
        rule = RULES[self.processor.name][check_subtask(subtask, self.subtasks)]
        segmentation, segments = rule(self.outputs_of(output), size, thresholds)
        return tuple(
            ImageSegment(
                score=score, label=self.labels[label], number=number, segmentation=segmentation
            )
            for number, label, score in segments
        )


def packed(maps: Array, classes: Array) -> Array:
    """Return masks and logits of labels in one array: rows of logits, filled with zeros, above those of the mask.

    Args:
        maps: Logits of masks, (images, queries, rows, columns).
        classes: Logits of labels, (images, queries, labels + 1).
    """
    columns = maps.shape[3]
    rows = -(-classes.shape[2] // columns)
    filled = np.zeros((*maps.shape[:2], rows * columns), np.float32)
    filled[:, :, : classes.shape[2]] = classes
    return np.concatenate([filled.reshape(*maps.shape[:2], rows, columns), maps], axis=2)


def unpacked(output: Array, count: int) -> tuple[Array, Array]:
    """Return the logits of labels and the masks of an array of `packed`, of an image or of several.

    Args:
        output: Array, (…, queries, rows, columns).
        count: Number of logits of a query.
    """
    *axes, _, columns = output.shape
    rows = -(-count // columns)
    classes = output[..., :rows, :].reshape(*axes, rows * columns)[..., :count]
    return classes, output[..., rows:, :]
