# SPDX-License-Identifier: Apache-2.0
"""Session of a keypoint detection package: images and boxes of people in, keypoints out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.families.vitpose import Box
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource, read_image
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.tasks.images.session import TOGETHER, ImageSession
from qeff_zoo.tasks.keypoint_detection.poses import Pose, check_boxes, poses_of
from qeff_zoo.tasks.keypoint_detection.task import NAME
from qeff_zoo.tasks.object_detection.boxes import check_threshold

_INDEX = "dataset_index"


class KeypointDetectionSession(ImageSession):
    """An opened package of the task `keypoint-detection`; see `ImageSession` for how to open it.

    Raises:
        GenerationError: The labels do not fit the graph; or an error of the base class.

    Example:
        >>> session = qeff_zoo.load("packages/vitpose-base-simple")  # doctest: +SKIP
        >>> pose = session.detect(["run.jpg"], [[(412, 157, 53, 138)]])[0][0]  # doctest: +SKIP
        >>> pose.keypoints[0].label, pose.keypoints[0].x  # doctest: +SKIP
        ('Nose', 428.2)
    """

    task = NAME
    output = "heatmaps"

    def __init__(self, folder: Path, program: Program, **given: Any) -> None:
        super().__init__(folder, program, **given)
        self.labels = labels.names_of(self.config, int(program.outputs[self.output].shape[1]))
        #: Number of data sets with experts of their own; 1 without experts.
        self.datasets = 1
        if _INDEX in program.inputs:
            self.datasets = int(self.config["backbone_config"]["num_experts"])

    def run(self, pixels: Array, dataset_index: int = 0) -> Array:
        """Run as many calls as needed, without unused rows.

        Args:
            pixels: float32, (people, 3, height, width).
            dataset_index: Number of the data set whose experts compute.

        Returns:
            float32, (people, keypoints, rows, columns).
        """
        answers = []
        for start, stop in self.calls(len(pixels)):
            feeds = {"pixel_values": np.ascontiguousarray(pixels[start:stop])}
            if self.datasets > 1:
                feeds[_INDEX] = np.full(stop - start, dataset_index, np.int64)
            answers.append(self._program.run(feeds)[self.output].astype(np.float32, copy=False))
        return np.concatenate(answers)

    def detect(
        self,
        images: ImageSource | Sequence[ImageSource],
        boxes: Sequence[Sequence[Box]] | None = None,
        *,
        threshold: float | None = None,
        dataset_index: int = 0,
        limits: ImageLimits = LIMITS,
    ) -> list[tuple[Pose, ...]]:
        """Return the poses of the people in each image.

        Args:
            images: Images, see `prepare`.
            boxes: Boxes of the people of each image: left and upper edge, width and height in pixels, as
                `object-detection` finds them; None for a person who fills each image.
            threshold: Score from 0 to 1 that keypoints exceed; None for all keypoints.
            dataset_index: Number of the data set whose experts compute, of a model with experts.
            limits: Limits of each image.

        Raises:
            GenerationError: There are no images, an argument is out of its range, or an output is not finite.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        several = self.listed(images)
        every = self._checked(several, boxes, threshold, dataset_index)
        poses = []
        for image, own in zip(several, every, strict=True):
            pixels = read_image(image, limits)
            known = own or [(0.0, 0.0, float(pixels.shape[1]), float(pixels.shape[0]))]
            parts = [known[start : start + TOGETHER] for start in range(0, len(known), TOGETHER)]
            maps = [self.run(self._people(pixels, part), dataset_index) for part in parts]
            size = int(self.size[0]), int(self.size[1])
            heatmaps = np.concatenate(maps)
            poses.append(poses_of(heatmaps, known, size, labels=self.labels, threshold=threshold))
        return poses

    def _people(self, pixels: Array, boxes: Sequence[Box]) -> Array:
        """Return the input of the graph for boxes of an image."""
        settings = {**self.processor.settings, "boxes": [boxes]}
        return self.input_of(replace(self.processor, settings=settings).arrays([pixels]))

    def _checked(
        self,
        images: Sequence[Any],
        boxes: Sequence[Sequence[Box]] | None,
        threshold: float | None,
        dataset_index: Any,
    ) -> list[list[Box] | None]:
        """Check arguments before an image is read; return the boxes of each image."""
        if threshold is not None:
            check_threshold(threshold)
        if type(dataset_index) is not int or not 0 <= dataset_index < self.datasets:
            raise GenerationError(
                f"The data set is {dataset_index!r}; expected a number from 0 to {self.datasets - 1}: the model has "
                f"experts of {self.datasets}. Correct it, or leave it out for 0."
            )
        if boxes is None:
            return [None] * len(images)
        if len(boxes) != len(images):
            raise GenerationError(
                f"There are {len(images)} images and {len(boxes)} lists of boxes; expected a list for each image. Give "
                "one for each."
            )
        return [check_boxes(own) for own in boxes]
