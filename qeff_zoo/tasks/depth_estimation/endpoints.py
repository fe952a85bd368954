# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's inference API of depth estimation: an image in, its depths out, at `/models/MODEL`."""

import base64
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.queues.media import Preparation, Step
from qeff_zoo.tasks.depth_estimation.session import DepthEstimate, DepthEstimationSession
from qeff_zoo.tasks.images import image_files
from qeff_zoo.tasks.images.image_files import ImageFileQueue


class DepthParameters(BaseModel):
    """Parameters of depth estimation; the task has none."""

    model_config = ConfigDict(strict=True, extra="forbid")


class DepthQueue(ImageFileQueue[DepthEstimationSession]):
    """Queue of images whose depth is estimated, in the order of arrival."""

    thread = "qeff-zoo depth"
    growing = "the answer would have a number for each"

    async def estimate(self, image: bytes, _: DepthParameters) -> dict[str, Any]:
        """Return the object with the depths of an image.

        Args:
            image: Content of the file.

        Raises:
            BusyError: The queue is full.
            MediaError: The image cannot be read, or exceeds a limit.
            ApiError: The image has more pixels than an answer may have numbers, or the server shuts down.
        """
        with self._requests.one():
            depth, size = await self.run(image)
            return await self.pool.prepare(self._resized(depth, size))

    def _resized(self, depth: Array, size: tuple[int, int]) -> Preparation[dict[str, Any]]:
        """Return the object with the depths in the size of an image."""
        height, width = size
        resize = partial(self.session.estimate_of, depth, height, width)
        answer: dict[str, Any] = yield Step(lambda: _object_of(resize()), 3 * 4 * height * width)
        return answer


def routes(queue: DepthQueue, check: Callable[[str], object]) -> APIRouter:
    """Return the endpoint.

    Args:
        queue: Queue of the requests.
        check: Function that refuses the name of another model.
    """
    return image_files.routes(check, DepthParameters, queue.estimate)


def _object_of(estimate: DepthEstimate) -> dict[str, Any]:
    rows: Iterator[Array] = iter(estimate.predicted_depth)
    return {"predicted_depth": rows, "depth": base64.b64encode(estimate.as_png()).decode()}
