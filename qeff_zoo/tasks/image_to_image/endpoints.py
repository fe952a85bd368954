# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's inference API of image-to-image models: an image in, a PNG file out, at `/models/MODEL`."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.queues.media import Preparation, Step
from qeff_zoo.tasks.image_to_image.session import ImageToImageSession
from qeff_zoo.tasks.images import image_files
from qeff_zoo.tasks.images.image_files import ImageFileQueue


class ImageToImageParameters(BaseModel):
    """Parameters of models without prompts; there are none."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ImageToImageQueue(ImageFileQueue[ImageToImageSession]):
    """Queue of images, in the order of arrival."""

    thread = "qeff-zoo image-to-image"
    growing = "the memory of the model grows with each"
    most: ClassVar[int] = 1 << 18

    async def transform(self, image: bytes, _: ImageToImageParameters) -> bytes:
        """Return the PNG file of the result for an image.

        Args:
            image: Content of the file.

        Raises:
            BusyError: The queue is full.
            MediaError: The image cannot be read, or exceeds a limit.
            GenerationError: The result has values that are not finite.
            ApiError: The image has too many pixels, or the server shuts down.
        """
        with self._requests.one():
            output, size = await self.run(image)
            return await self.pool.prepare(self._as_png(output, size))

    def _as_png(self, output: Array, size: tuple[int, int]) -> Preparation[bytes]:
        """Return the PNG file of a result."""
        result = partial(self.session.reconstruction_of, output, *size)
        content: bytes = yield Step(lambda: result().as_png(), 4 * output.size)
        return content


def routes(queue: ImageToImageQueue, check: Callable[[str], object]) -> APIRouter:
    """Return the endpoint.

    Args:
        queue: Queue of the requests.
        check: Function that refuses the name of another model.
    """
    return image_files.routes(check, ImageToImageParameters, queue.transform, _as_file)


async def _as_file(content: bytes) -> Response:
    return Response(content, media_type="image/png")
