# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's inference API of object detection: an image in, its objects out, at `/models/MODEL`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.tasks.images import image_files
from qeff_zoo.tasks.images.image_files import ImageFileQueue
from qeff_zoo.tasks.object_detection.boxes import THRESHOLD
from qeff_zoo.tasks.object_detection.session import ObjectDetectionSession


class DetectionParameters(BaseModel):
    """Parameters of object detection.

    Args:
        threshold: Score that detected objects exceed.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    threshold: Annotated[float, Field(ge=0, le=1)] = THRESHOLD


class DetectionQueue(ImageFileQueue[ObjectDetectionSession]):
    """Queue of images whose objects are detected, in the order of arrival."""

    thread = "qeff-zoo detection"

    async def detect(self, image: bytes, parameters: DetectionParameters) -> list[dict[str, Any]]:
        """Return the objects of an image.

        Args:
            image: Content of the file.
            parameters: Parameters of the request.

        Raises:
            BusyError: The queue is full.
            MediaError: The image cannot be read, or exceeds a limit.
            ApiError: The server shuts down.
        """
        with self._requests.one():
            output, size = await self.run(image)
            objects = self.session.detections_of(output, size, parameters.threshold)
            return [asdict(detection) for detection in objects]


def routes(queue: DetectionQueue, check: Callable[[str], object]) -> APIRouter:
    """Return the endpoint.

    Args:
        queue: Queue of the requests.
        check: Function that refuses the name of another model.
    """
    return image_files.routes(check, DetectionParameters, queue.detect)
