# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's inference API of image segmentation: an image in, its segments out, at `/models/MODEL`."""

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.queues.media import Preparation, Step
from qeff_zoo.tasks.image_segmentation.segments import (
    THRESHOLDS,
    ImageSegment,
    Thresholds,
    check_subtask,
)
from qeff_zoo.tasks.image_segmentation.session import ImageSegmentationSession
from qeff_zoo.tasks.images import image_files
from qeff_zoo.tasks.images.image_files import ImageFileQueue

_Share = Annotated[float, Field(ge=0, le=1)]


class SegmentationParameters(BaseModel):
    """Parameters of image segmentation, see `Thresholds`.

    Args:
        subtask: Kind of segmentation; None for the first of the model's.
        threshold: Score that segments exceed.
        mask_threshold: Probability from which on a pixel belongs to a mask.
        overlap_mask_area_threshold: Share of its mask that a segment exceeds.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    subtask: Literal["panoptic", "instance", "semantic"] | None = None
    threshold: _Share = THRESHOLDS.threshold
    mask_threshold: _Share = THRESHOLDS.mask_threshold
    overlap_mask_area_threshold: _Share = THRESHOLDS.overlap_mask_area_threshold


class SegmentationQueue(ImageFileQueue[ImageSegmentationSession]):
    """Queue of images that are segmented, in the order of arrival."""

    thread = "qeff-zoo segmentation"
    growing = "each mask of the answer as many"

    async def segment(
        self, image: bytes, parameters: SegmentationParameters
    ) -> Iterator[dict[str, Any]]:
        """Return the segments of an image.

        Args:
            image: Content of the file.
            parameters: Parameters of the request.

        Raises:
            BusyError: The queue is full.
            GenerationError: The model does not support the subtask.
            MediaError: The image cannot be read, or exceeds a limit.
            ApiError: The image has too many pixels for an answer, or the server shuts down.
        """
        check_subtask(parameters.subtask, self.session.subtasks)
        with self._requests.one():
            output, size = await self.run(image)
            return _objects_of(await self.pool.prepare(self._found(output, size, parameters)))

    def _found(
        self, output: Array, size: tuple[int, int], parameters: SegmentationParameters
    ) -> Preparation[Sequence[ImageSegment]]:
        """Return the segments of an image."""
        given = parameters.model_dump(exclude={"subtask"})
        segments = partial(
            self.session.segments_of, output, size, parameters.subtask, Thresholds(**given)
        )
        result: Sequence[ImageSegment] = yield Step(segments, 4 * 4 * size[0] * size[1])
        return result


def _objects_of(segments: Sequence[ImageSegment]) -> Iterator[dict[str, Any]]:
    """Yield the objects of segments; a mask is compressed when the client has read those before it."""
    for segment in segments:
        mask = base64.b64encode(segment.as_png()).decode()
        yield {"score": segment.score, "label": segment.label, "mask": mask}


def routes(queue: SegmentationQueue, check: Callable[[str], object]) -> APIRouter:
    """Return the endpoint.

    Args:
        queue: Queue of the requests.
        check: Function that refuses the name of another model.
    """
    return image_files.routes(check, SegmentationParameters, queue.segment)
