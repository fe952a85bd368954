# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's inference API of zero-shot detection: an image and labels in, objects out, at `/models/MODEL`."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.serving.errors import ApiError
from qeff_zoo.tasks.images import image_files
from qeff_zoo.tasks.images.image_files import ImageFileQueue
from qeff_zoo.tasks.zero_shot_detection.objects import THRESHOLD, check_labels
from qeff_zoo.tasks.zero_shot_detection.session import ZeroShotDetectionSession

#: Maximum number of labels of a request, and of characters of a label: encoders read 16 tokens.
_LABELS, _LONGEST = 256, 1024

Label = Annotated[str, Field(min_length=1, max_length=_LONGEST)]


class NamedDetectionParameters(BaseModel):
    """Parameters of zero-shot object detection.

    Args:
        candidate_labels: Texts that name objects.
        threshold: Score that detected objects exceed.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    candidate_labels: Annotated[list[Label], Field(max_length=_LABELS)] = []
    threshold: Annotated[float, Field(ge=0, le=1)] = THRESHOLD


class NamedDetectionQueue(ImageFileQueue[ZeroShotDetectionSession]):
    """Queue of images whose objects are detected, in the order of arrival."""

    thread = "qeff-zoo zero-shot detection"

    async def detect(
        self, image: bytes, parameters: NamedDetectionParameters
    ) -> list[dict[str, Any]]:
        """Return the objects of an image.

        Args:
            image: Content of the file.
            parameters: Parameters of the request.

        Raises:
            BusyError: The queue is full.
            MediaError: The image cannot be read, or exceeds a limit.
            ApiError: There are no labels, or the server shuts down.
        """
        labels = parameters.candidate_labels
        if not labels or not all(label.strip() for label in labels):
            raise ApiError(
                400,
                f"Parameter 'candidate_labels' is {labels!r}; expected texts that name objects, in `parameters` of a "
                "JSON body. Send at least one.",
                param="candidate_labels",
                code="invalid_value",
            )
        with self._requests.one():
            texts = await self._calls.run(partial(self.session.embed_texts, check_labels(labels)))
            output, size = await self.run(image)
            objects = self.session.objects_of(output, size, labels, texts, parameters.threshold)
            return [asdict(detection) for detection in objects]


def routes(queue: NamedDetectionQueue, check: Callable[[str], object]) -> APIRouter:
    """Return the endpoint.

    Args:
        queue: Queue of the requests.
        check: Function that refuses the name of another model.
    """
    return image_files.routes(check, NamedDetectionParameters, queue.detect)
