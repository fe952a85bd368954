# SPDX-License-Identifier: Apache-2.0
"""Image files of requests: inputs of graphs, and the queue and endpoint of tasks that read one image, `/models/MODEL`.

The body is the file of an image, or JSON with it in base64, as huggingface_hub's clients send them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from qeff_zoo.errors import BusyError
from qeff_zoo.media.images import decoded_bytes_of, size_of
from qeff_zoo.runtime import Stats
from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.answers.large import MAX_NUMBERS, json_answer
from qeff_zoo.serving.answers.streaming import unless_gone
from qeff_zoo.serving.apis.hub import PREFIX, is_json
from qeff_zoo.serving.apis.hub_files import PARAM, documented, read_file
from qeff_zoo.serving.errors import ApiError, blaming, queue_full
from qeff_zoo.serving.queues.media import Preparation, Step
from qeff_zoo.serving.requests.media_queue import MediaQueue
from qeff_zoo.serving.requests.price import BOUNDS
from qeff_zoo.serving.requests.prompts import QUICK_IMAGE, SECONDS_OF_IMAGE
from qeff_zoo.tasks.images.session import ImageSession

_Session = TypeVar("_Session", bound=ImageSession)
_Parameters = TypeVar("_Parameters", bound=BaseModel)


def image_input(session: ImageSession, image: bytes) -> Preparation[tuple[Array, tuple[int, int]]]:
    """Return the input of the graph for an image, and the height and width of the image.

    Args:
        session: Session of the model.
        image: Content of the file.

    Raises:
        MediaError: The image cannot be read, or exceeds a limit.
        GenerationError: It does not fit the graph.
    """
    nbytes = decoded_bytes_of(image, size_of(image, BOUNDS.images))
    work = session.sized_preparation(image, BOUNDS.images)
    # The memory of a large image is that of a process which ends, and not of the server.
    apart = SECONDS_OF_IMAGE if nbytes > QUICK_IMAGE else 0
    processed, size = yield Step(work, nbytes, apart=apart)
    return session.input_of(processed), size


class ImageFileQueue(MediaQueue[_Session]):
    """Base class of queues of images, in the order of arrival.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    #: Clause on the size of an answer that grows with the image; empty for other answers.
    growing: ClassVar[str] = ""
    #: Maximum number of pixels of an image with such an answer.
    most: ClassVar[int] = MAX_NUMBERS

    def __init__(self, session: _Session, *, max_waiting: int) -> None:
        super().__init__(session, max_waiting=max_waiting)
        self._images = 0

    async def run(self, image: bytes) -> tuple[Array, tuple[int, int]]:
        """Return the output of the graph for an image, and the height and width of the image.

        Args:
            image: Content of the file.

        Raises:
            MediaError: The image cannot be read, or exceeds a limit.
            ApiError: The image has too many pixels for an answer, or the server shuts down.
        """
        pixels, size = await self.pool.prepare(self._input(image))
        (output,) = await self._calls.run(partial(self.session.run, pixels))
        self._images += 1
        return output, size

    def _input(self, image: bytes) -> Preparation[tuple[Array, tuple[int, int]]]:
        if self.growing:
            width, height = size_of(image, BOUNDS.images)
            self._check_answer(width * height)
        return (yield from image_input(self.session, image))

    def _check_answer(self, pixels: int) -> None:
        """Refuse an image whose answer would be too large, before it is decoded."""
        if pixels > self.most:
            raise ApiError(
                400,
                f"The image has {pixels:,} pixels, and {self.growing}; expected at most {self.most:,}. Send a "
                "smaller image, or use `qeff-zoo run --output`.",
                param=PARAM,
                code="answer_too_large",
            )

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        rows, running = self.session.batch_sizes[-1], min(self._requests.active, 1)
        stats = self._requests.stats(rows=rows, running=running, prompt_tokens=0)
        return replace(stats, images=self._images, encoded_images=self._images)


def routes(
    check: Callable[[str], object],
    parameters: type[_Parameters],
    answer: Callable[[bytes, _Parameters], Awaitable[Any]],
    respond: Callable[[Any], Awaitable[Response]] = json_answer,
) -> APIRouter:
    """Return the endpoint of a task.

    Args:
        check: Function that refuses the name of another model.
        parameters: Class of the parameters, which are all optional.
        answer: Function that computes the answer for an image.
        respond: Function that returns the response with an answer.
    """
    router = APIRouter()

    @router.post(
        f"{PREFIX}{{model:path}}",
        openapi_extra=documented("image/*", parameters),
    )
    async def read(request: Request, model: str) -> Response:
        check(model)
        image, chosen = await read_file(
            request, parameters, "an image", as_json=is_json(request.headers)
        )
        try:
            with blaming(PARAM):
                content = await unless_gone(request, answer(image, chosen))
        except BusyError as error:
            raise queue_full(error) from error
        return await respond(content)

    return router
