# SPDX-License-Identifier: Apache-2.0
"""Embeddings of images, and of texts to match with them: one thread that serves all clients, and the endpoint.

An image is a part of a user's message in `messages`, as in vLLM's API.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from fastapi import APIRouter, Request, Response

from qeff_zoo.runtime import Stats
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.serving.errors import ApiError, blaming
from qeff_zoo.serving.queues.media import Preparation
from qeff_zoo.serving.requests.encoder_schemas import ImageEmbeddingRequest
from qeff_zoo.serving.requests.media_queue import MediaQueue
from qeff_zoo.serving.requests.prompts import read_media
from qeff_zoo.serving.requests.rendering import refuse_files
from qeff_zoo.serving.requests.schemas import listed
from qeff_zoo.tasks.encoders.endpoints.embeddings import embedded
from qeff_zoo.tasks.encoders.endpoints.scores import require_few, require_short
from qeff_zoo.tasks.images.image_files import image_input
from qeff_zoo.tasks.images.session import ImageEmbeddingSession
from qeff_zoo.tasks.images.zero_shot_session import ZeroShotSession


class ImageQueue(MediaQueue[ImageEmbeddingSession]):
    """Queue of embedding requests for images or texts, in the order of arrival.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    thread = "qeff-zoo images"

    def __init__(self, session: ImageEmbeddingSession, *, max_waiting: int) -> None:
        super().__init__(session, max_waiting=max_waiting)
        self._tokens = self._images = 0

    async def embed(
        self, preparation: Preparation[tuple[Array | None, list[Encoded]]]
    ) -> tuple[list[Encoded], Array]:
        """Return the texts of a request, and an embedding of each text or image.

        Raises:
            BusyError: The queue is full.
            GenerationError: An input cannot be embedded.
            ApiError: The server shuts down, or the request is refused.
        """
        with self._requests.one():
            images, texts = await self.pool.prepare(preparation)
            if images is not None:
                embeddings = await self._calls.run(partial(self.session.run, images))
                self._images += len(images)
                return [Encoded.of_ids([])] * len(embeddings), embeddings
            matching = cast("ZeroShotSession", self.session)
            parts = [
                await self._calls.run(
                    partial(matching.embed_texts, [text.ids for text in texts[start:stop]])
                )
                for start, stop in matching.calls(len(texts))
            ]
            self._tokens += sum(len(text.ids) for text in texts)
            return texts, np.concatenate(parts)

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        rows, running = self.session.batch_sizes[-1], min(self._requests.active, 1)
        stats = self._requests.stats(rows=rows, running=running, prompt_tokens=self._tokens)
        return replace(stats, images=self._images, encoded_images=self._images)


def routes(
    api: str, queue: ImageQueue, admit: Callable[[Any], object], hosts: Collection[str]
) -> APIRouter:
    """Return the endpoint of embeddings.

    Args:
        api: Prefix of the path.
        queue: Queue of the requests.
        admit: Function that checks the model of a body.
        hosts: Hosts from which images are fetched; empty for images in the request alone.
    """
    router = APIRouter()

    @router.post(f"{api}embeddings")
    async def embeddings(request: Request, body: ImageEmbeddingRequest) -> Response:
        admit(body)
        return await embedded(request, body, queue.embed(_read(queue.session, body, hosts)))

    return router


def _read(
    session: ImageEmbeddingSession, body: ImageEmbeddingRequest, hosts: Collection[str]
) -> Preparation[tuple[Array | None, list[Encoded]]]:
    """Return the pixels of a request's image, or its tokenized texts."""
    urls = [("image", url) for message in body.messages or () for url in message.images]
    messages = [message.text for message in body.messages or () if message.text]
    texts = [*(listed(body.input) if body.input else []), *messages]
    param = "messages" if body.messages else "input"
    refuse_files(body.model, body.messages or (), ("images",))
    if len(urls) > 1 or bool(urls) == bool(texts) or (body.messages and body.input):
        raise _refusal(
            f"The request has {len(urls)} images and {len(texts)} texts; expected one image in 'messages', or "
            "texts in 'input'. Send them apart.",
            param,
        )
    if texts and not session.reads_texts:
        raise _refusal(
            f"Model {body.model!r} reads images alone; expected one in 'messages', as a part of type image_url. Send "
            "that, or ask a model that reads texts.",
            param,
        )
    read: list[Encoded] = []
    if texts:
        matching = cast("ZeroShotSession", session)
        require_few(texts, param)
        require_short(matching.tokenizer, texts, matching.max_length, None, param)
        with blaming(param):
            read = matching.read(texts)
    images = yield from read_media(urls, hosts)
    if not images:
        return None, read
    with blaming(param):
        pixels, _ = yield from image_input(session, images[0])
        return pixels, read


def _refusal(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
