# SPDX-License-Identifier: Apache-2.0
"""Session of an object detection package: images in, labels, scores and boxes out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract import OBJECT_DETECTION
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.tasks.images.session import ImageSession
from qeff_zoo.tasks.object_detection.boxes import (
    THRESHOLD,
    Detection,
    check_threshold,
    detections_of,
    has_no_object,
)


class ObjectDetectionSession(ImageSession):
    """An opened package of the task `object-detection`; see `ImageSession` for how to open it.

    Raises:
        GenerationError: The labels do not fit the graph; or an error of the base class.

    Example:
        >>> session = qeff_zoo.load("packages/yolos-tiny")  # doctest: +SKIP
        >>> [(one.label, one.box.xmin) for one in session.detect(["cats.jpg"])[0]]  # doctest: +SKIP
        [('cat', 10), ('remote', 40), ('cat', 336)]
    """

    task = OBJECT_DETECTION
    output = "logits"

    def __init__(self, folder: Path, program: Program, **given: Any) -> None:
        super().__init__(folder, program, **given)
        count = int(program.outputs[self.output].shape[-1])
        count -= has_no_object(self.processor.name)
        self.labels = labels.names_of(self.config, count)

    def run(self, pixels: Array) -> Array:
        """Run as many calls as needed, without unused rows.

        Args:
            pixels: float32, (images, 3, height, width).

        Returns:
            float32, (images, queries, labels + 4): the logits of labels, then the box, of each query.
        """
        answers = []
        for start, stop in self.calls(len(pixels)):
            feeds = {"pixel_values": np.ascontiguousarray(pixels[start:stop])}
            outputs = self._program.run(feeds)
            both = [outputs[name] for name in (self.output, "pred_boxes")]
            answers.append(np.concatenate(both, axis=2).astype(np.float32, copy=False))
        return np.concatenate(answers)

    def detect(
        self,
        images: ImageSource | Sequence[ImageSource],
        threshold: float = THRESHOLD,
        limits: ImageLimits = LIMITS,
    ) -> list[tuple[Detection, ...]]:
        """Return the detected objects of each image; adjacent images of one size share calls. See `prepare`.

        Args:
            images: Images, see `prepare`.
            threshold: Score from 0 to 1 that objects exceed.
            limits: Limits of each image.

        Raises:
            GenerationError: There are no images, or the threshold is not from 0 to 1.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        check_threshold(threshold)
        return [
            self.detections_of(output, size, threshold)
            for output, size in self.answers(images, limits)
        ]

    def detections_of(
        self, output: Array, size: tuple[int, int], threshold: float
    ) -> tuple[Detection, ...]:
        """Return the objects of an image from a row of `run`.

        Args:
            output: Logits and boxes, (queries, labels + 4).
            size: Height and width of the image.
            threshold: Score that objects exceed.
        """
        return detections_of(
            output[:, :-4],
            output[:, -4:],
            size,
            processor=self.processor.name,
            labels=self.labels,
            threshold=threshold,
        )
