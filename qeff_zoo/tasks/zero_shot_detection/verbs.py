# SPDX-License-Identifier: Apache-2.0
"""`run` of zero-shot object detection packages: images and labels in, objects out, and images with their boxes."""

from dataclasses import dataclass
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.tasks.object_detection.boxes import check_threshold
from qeff_zoo.tasks.object_detection.verbs import write_and_print
from qeff_zoo.tasks.zero_shot_detection.objects import THRESHOLD, check_labels


@dataclass(frozen=True)
class DetectNamedObjects(Run):
    """Detects objects that labels name, and draws their boxes.

    Raises:
        GenerationError: There are no labels, or the threshold is not from 0 to 1.
    """

    def __post_init__(self) -> None:
        """Check the arguments before the package is opened."""
        check_labels(self.arguments.label)
        check_threshold(self._threshold)

    @property
    def _threshold(self) -> float:
        given: float | None = self.arguments.threshold
        return THRESHOLD if given is None else given

    def __call__(self, session: Any) -> None:
        """Detect, draw and print."""
        labels = list(self.arguments.label)
        files = fetch_each(list(self.arguments.image))
        detected = session.detect(files, labels, self._threshold)
        write_and_print(self.arguments, files, detected, labels)
